//! A client of the collector's gRPC service.
