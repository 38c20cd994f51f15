"""The reference 3D-parallel training stack."""
