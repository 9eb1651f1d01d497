"""How a process reaches the world: database, queue, storage, telemetry, settings, signals."""
