.DEFAULT_GOAL := help
.PHONY: help stack build demo test test-race test-faults fuzz bench lint up down

ROUNDS ?= 3
FUZZTIME ?= 10m
GOLANGCI := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

help: ## show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

stack: ## find or start PostgreSQL and RabbitMQ, and set them up
	scripts/stack up

build: ## build all programs into bin/
	go build -o bin/ ./cmd/shop ./services/orders/cmd/orders ./services/billing/cmd/billing ./services/billing/provider/cmd/provider ./services/catalog-view/cmd/catalog-view

demo: stack build ## tell the story of a shop in which things go wrong, and audit it
	bin/shop demo

up: stack build ## run the shop on ports 8081 to 8084 until Ctrl-C
	bin/shop up

test: stack ## run all tests but the long fault runs
	go test ./...

test-race: stack ## the same under the race detector
	go test -race ./...

test-faults: ## restart and stop both servers under load, on instances of its own
	go test -count=1 -timeout 30m -tags faults ./e2e/faults/

fuzz: stack ## send a consumer whatever anybody could, for FUZZTIME (10m)
	go test -run '^$$' -fuzz FuzzConsumer -fuzztime $(FUZZTIME) -fuzzminimizetime 1x ./pkg/broker/

bench: stack ## measure against the physical limits, ROUNDS=3 times, and print medians and ratios
	for round in $$(seq $(ROUNDS)); do go test -run '^$$' -bench . -benchtime 1x -timeout 2h ./pkg/... || exit 1; done > bench.out
	go run ./scripts/bench < bench.out

lint: ## vet and lint
	go vet ./...
	$(GOLANGCI) run

down: ## end the servers that `make stack` started
	scripts/stack down
