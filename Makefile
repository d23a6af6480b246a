.DEFAULT_GOAL := help
.PHONY: help stack build demo test test-race test-faults fuzz lint up down

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

lint: ## vet and lint
	go vet ./...
	$(GOLANGCI) run

down: ## end the servers that `make stack` started
	scripts/stack down
