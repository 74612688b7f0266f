"""What a policy keeps out of answers, one of each kind, for tests and benches of the output filter."""

from __future__ import annotations

SPANS = {
    "phrase": "Project Nightjar",
    "email": "ana.lopez+x@mail.example.org",
    "credit_card": "4111 1111 1111 1111",
    "iban": "GB29 NWBK 6016 1331 9268 19",
    "us_ssn": "078-05-1120",
    "phone": "+49 (0)30 901820 12",
    "ip_address": "203.0.113.77",
    "aws_key": "AKIAIOSFODNN7EXAMPLE",
    "github_token": "ghp_" + "a1B2c3D4e5F6" * 3,
    "gitlab_token": "glpat-" + "xY9z" * 5,
    "slack_token": "xoxb-" + "1234567890-abcdef",
    "google_key": "AIza" + "Sy1x2Y3" * 5,
    "stripe_key": "sk_" + "live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "model_key": "sk-proj-" + "Ab12Cd34Ef56Gh78Ij90Kl",
    "package_token": "npm_" + "q1W2e3R4t5Y6" * 3,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "url_password": "bob:hunter22pass",
    "assigned": "api_key=Zx81kQpW77uu",
    "private_key": "-----BEGIN RSA PRIVATE KEY-----",
    "encoded phrase": "cHJvamVjdCBuaWdodGphciBpcyBnbw==",
    "encoded email": "%61%6e%61%40mail.example.org",
}


AROUND = {"url_password": ("see https://", "@host.example/x now")}
