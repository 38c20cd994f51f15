"""Spans of a store as OpenTelemetry traces, for whatever backend takes OTLP over HTTP."""
