"""From black boxes to tables: schemas, agent, writer, store, exporters."""
