#!/bin/sh
# versitygw, the S3 server that the store tests run against, from its Go module. Prints its path; see go_binary.sh.
exec "$(dirname "$0")/go_binary.sh" \
    versitygw v1.8.0 github.com/versity/versitygw/cmd/versitygw "go without the real S3 server"
