"""Modules that the doctor starts processes with: they are run by name, never imported."""

hiddenimports = ["fanin.deploy.doctor_load", "fanin.deploy.doctor_shapes"]
