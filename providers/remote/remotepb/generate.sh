#!/bin/sh
# Compiles the .proto file beside this script. Needs protoc; its Go plugins are tools of this module.
set -eu
exec protoc -I ../../.. \
	--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
	--plugin=protoc-gen-go-grpc="$(go tool -n protoc-gen-go-grpc)" \
	--go_out=../../.. --go_opt=paths=source_relative \
	--go-grpc_out=../../.. --go-grpc_opt=paths=source_relative \
	../../../providers/remote/remotepb/remote.proto
