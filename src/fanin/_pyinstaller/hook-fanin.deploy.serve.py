"""Modules that the server starts processes with: they are run by name, never imported."""

hiddenimports = ["fanin.deploy.serve.server", "fanin.deploy.serve.trial_process"]
