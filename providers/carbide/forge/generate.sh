#!/bin/sh
# Compiles the .proto files beside this script. Needs protoc; its Go plugins are tools of this module.
# Files are named from providers/ on, because protobuf registers them by that name, program-wide.
set -eu
exec protoc -I . -I ../.. \
	--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
	--plugin=protoc-gen-go-grpc="$(go tool -n protoc-gen-go-grpc)" \
	--go_out=../.. --go_opt=paths=source_relative \
	--go-grpc_out=../.. --go-grpc_opt=paths=source_relative \
	../../carbide/forge/*.proto
