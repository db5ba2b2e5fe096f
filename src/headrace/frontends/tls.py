"""The server's certificate: one context that every door with TLS uses, whose certificate can be exchanged.

A new certificate is for connections from then on; those that stand go on with the one they were opened with.
"""

from __future__ import annotations

import ssl

from headrace.config import TlsConfig
from headrace.errors import InvalidArgument

__all__ = ["reload_certificate", "server_context"]


def server_context(config: TlsConfig) -> ssl.SSLContext | None:
    """A context with the configured certificate, None when there is none; TLS 1.2 at least."""
    if not config.certificate:
        if config.key:
            raise InvalidArgument(f"tls.key is {config.key}, and tls.certificate is not set; set both, or neither")
        if config.client_ca:
            raise InvalidArgument(
                f"tls.client_ca is {config.client_ca}, and tls.certificate is not set; without TLS nobody shows one"
            )
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, config)
    return context


def reload_certificate(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Read the files again; what is wrong with them is raised before anything is exchanged."""
    _load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), config)
    _load(context, config)


def _load(context: ssl.SSLContext, config: TlsConfig) -> None:
    _load_own(context, config)
    if config.client_ca:
        try:
            context.load_verify_locations(config.client_ca)
        except ssl.SSLError as error:
            raise InvalidArgument(
                f"tls.client_ca {config.client_ca}: {error.reason or 'no certificates in PEM form'}"
            ) from None
        except OSError as error:
            raise InvalidArgument(f"tls.client_ca {config.client_ca}: {error.strerror}") from None
        context.verify_mode = ssl.CERT_REQUIRED if config.client_certificates == "required" else ssl.CERT_OPTIONAL


def _load_own(context: ssl.SSLContext, config: TlsConfig) -> None:
    files = config.certificate if not config.key else f"{config.certificate} with key {config.key}"
    try:
        context.load_cert_chain(config.certificate, config.key or None, password=_no_password)
    except ssl.SSLError as error:
        raise InvalidArgument(
            f"tls.certificate {files}: {error.reason or 'no certificate and key in PEM form that belong together'}"
        ) from None
    except OSError as error:
        raise InvalidArgument(f"tls.certificate {files}: {error.strerror}") from None


def _no_password() -> str:
    raise InvalidArgument("tls.key is encrypted; a server needs one without a password, in a file only it can read")
