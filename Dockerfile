# One image per program: docker build --build-arg PROGRAM=orders .
#
# All programs are built in one step, whose layer the images share. It needs no cache mounts, which only BuildKit has.
FROM golang:1.26 AS build
WORKDIR /src
ENV CGO_ENABLED=0
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN go build -trimpath -ldflags="-s -w" -o /out/ ./cmd/... ./services/...

FROM gcr.io/distroless/static-debian12:nonroot
ARG PROGRAM
COPY --from=build /out/${PROGRAM:?} /program
USER 65532:65532
ENTRYPOINT ["/program"]
