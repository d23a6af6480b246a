package inbox

// SweepSQL is what a cleaner deletes with.
const SweepSQL = sweep
