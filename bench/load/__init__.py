"""Loads on any server that speaks OpenAI's API, made by NVIDIA's aiperf with profiles of ours."""
