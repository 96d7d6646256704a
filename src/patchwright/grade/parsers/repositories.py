"""Which parser reads which repository's logs, as the official packages have it (facts, by repository)."""

from __future__ import annotations

from collections.abc import Mapping

from patchwright.errors import ConfigError

__all__ = ["ALIASES", "concrete_parser", "repository_parser"]

_PYTEST = (
    "astroid flask marshmallow pvlib pyvista sqlfluff xarray mypy moto conan modin monai dvc dask bokeh mne"
)

ALIASES: Mapping[str, str] = {
    **{f"parse_log_{name}": "parse_log_pytest" for name in f"{_PYTEST} hypothesis pandas hydra".split()},
    **{f"parse_log_{name}": "parse_log_pytest_options" for name in ("pydicom", "requests", "pylint")},
    **{f"parse_log_{name}": "parse_log_pytest_v2" for name in ("astropy", "scikit", "sphinx")},
    "parse_log_pydantic": "parse_log_pytest_pydantic",
    **{
        f"parse_log_{name}": "parse_log_carbon"
        for name in ("react_pdf", "scratch_gui", "prettier", "lighthouse_jest")
    },
}
"""Official names that are another parser's."""

_REPOSITORIES: Mapping[str, str] = {
    # Python, SWE-bench
    "astropy/astropy": "parse_log_astropy",
    "django/django": "parse_log_django",
    "marshmallow-code/marshmallow": "parse_log_marshmallow",
    "matplotlib/matplotlib": "parse_log_matplotlib",
    "mwaskom/seaborn": "parse_log_seaborn",
    "pallets/flask": "parse_log_flask",
    "psf/requests": "parse_log_requests",
    "pvlib/pvlib-python": "parse_log_pvlib",
    "pydata/xarray": "parse_log_xarray",
    "pydicom/pydicom": "parse_log_pydicom",
    "pylint-dev/astroid": "parse_log_astroid",
    "pylint-dev/pylint": "parse_log_pylint",
    "pytest-dev/pytest": "parse_log_pytest",
    "pyvista/pyvista": "parse_log_pyvista",
    "scikit-learn/scikit-learn": "parse_log_scikit",
    "sphinx-doc/sphinx": "parse_log_sphinx",
    "sqlfluff/sqlfluff": "parse_log_sqlfluff",
    "sympy/sympy": "parse_log_sympy",
    # Python, SWE-Gym
    "bokeh/bokeh": "parse_log_bokeh",
    "conan-io/conan": "parse_log_conan",
    "dask/dask": "parse_log_dask",
    "facebookresearch/hydra": "parse_log_hydra",
    "getmoto/moto": "parse_log_moto",
    "hypothesisworks/hypothesis": "parse_log_hypothesis",
    "iterative/dvc": "parse_log_dvc",
    "mne-tools/mne-python": "parse_log_mne",
    "modin-project/modin": "parse_log_modin",
    "pandas-dev/pandas": "parse_log_pandas",
    "project-monai/monai": "parse_log_monai",
    "pydantic/pydantic": "parse_log_pydantic",
    "python/mypy": "parse_log_mypy",
    # C and C++
    "fmtlib/fmt": "parse_log_googletest",
    "jqlang/jq": "parse_log_jq",
    "micropython/micropython": "parse_log_micropython_test",
    "nlohmann/json": "parse_log_doctest",
    "redis/redis": "parse_log_redis",
    "valkey-io/valkey": "parse_log_redis",
    # Go
    "caddyserver/caddy": "parse_log_gotest",
    "gin-gonic/gin": "parse_log_gotest",
    "gohugoio/hugo": "parse_log_gotest",
    "hashicorp/terraform": "parse_log_gotest",
    "prometheus/prometheus": "parse_log_gotest",
    # Java
    "apache/druid": "parse_log_maven",
    "apache/lucene": "parse_log_gradle_custom",
    "google/gson": "parse_log_maven",
    "javaparser/javaparser": "parse_log_maven",
    "projectlombok/lombok": "parse_log_ant",
    "reactivex/rxjava": "parse_log_gradle_custom",
    # JavaScript
    "alibaba-fusion/next": "parse_log_next",
    "automattic/wp-calypso": "parse_log_calypso",
    "axios/axios": "parse_log_tap",
    "babel/babel": "parse_log_jest",
    "bpmn-io/bpmn-js": "parse_log_bpmn_js",
    "carbon-design-system/carbon": "parse_log_carbon",
    "chartjs/chart.js": "parse_log_chart_js",
    "cypress-io/cypress": "parse_log_cypress",
    "diegomura/react-pdf": "parse_log_react_pdf",
    "emotion-js/emotion": "parse_log_emotion",
    "eslint/eslint": "parse_log_eslint",
    "facebook/docusaurus": "parse_log_jest",
    "googlechrome/lighthouse": "parse_log_lighthouse",
    "grommet/grommet": "parse_log_grommet",
    "highlightjs/highlight.js": "parse_log_highlightjs",
    "immutable-js/immutable-js": "parse_log_immutable_js",
    "markedjs/marked": "parse_log_marked",
    "mrdoob/three.js": "parse_log_tap",
    "openlayers/openlayers": "parse_log_openlayers",
    "plotly/plotly.js": "parse_plotly_js",
    "preactjs/preact": "parse_log_karma",
    "prettier/prettier": "parse_log_prettier",
    "prismjs/prism": "parse_log_prismjs",
    "processing/p5.js": "parse_log_p5js",
    "quarto-dev/quarto-cli": "parse_log_quarto_cli",
    "scratchfoundation/scratch-gui": "parse_log_scratch_gui",
    "vuejs/core": "parse_log_vitest",
    # PHP
    "briannesbitt/carbon": "parse_log_phpunit",
    "laravel/framework": "parse_log_phpunit",
    "php-cs-fixer/php-cs-fixer": "parse_log_phpunit",
    "phpoffice/phpspreadsheet": "parse_log_phpunit",
    # Ruby
    "faker-ruby/faker": "parse_log_ruby_unit",
    "fastlane/fastlane": "parse_log_rspec_transformed_json",
    "fluent/fluentd": "parse_log_ruby_unit",
    "jekyll/jekyll": "parse_log_jekyll",
    "jordansissel/fpm": "parse_log_rspec_transformed_json",
    "rubocop/rubocop": "parse_log_rspec_transformed_json",
    # Rust
    "astral-sh/ruff": "parse_log_cargo",
    "burntsushi/ripgrep": "parse_log_cargo",
    "nushell/nushell": "parse_log_cargo",
    "sharkdp/bat": "parse_log_cargo",
    "tokio-rs/axum": "parse_log_cargo",
    "tokio-rs/tokio": "parse_log_cargo",
    "uutils/coreutils": "parse_log_cargo",
}

_SWESMITH: Mapping[str, str] = {
    "gin-gonic/gin": "parse_log_gotest",
    "hips/autograd": "swesmith_autograd",
    "paramiko/paramiko": "swesmith_paramiko",
    "python/mypy": "swesmith_mypy",
    "tornadoweb/tornado": "swesmith_tornado",
    "un33k/python-slugify": "swesmith_python_slugify",
}

_JEKYLL = {
    **dict.fromkeys(("9141", "8047", "8167"), "parse_log_minitest"),
    **dict.fromkeys(("8761", "8771"), "parse_log_cucumber"),
}
_IMMUTABLE = {"2006": "parse_log_jest", "2005": "parse_log_jest_json"}


def repository_parser(repo: str, *, swesmith: bool = False) -> str | None:
    """The official parser's name for `owner/name` in any case, None for a repository nobody lists.

    SWE-smith reads every repository that it does not name by `swesmith_pytest`.
    """
    if swesmith:
        return _SWESMITH.get(repo.lower(), "swesmith_pytest")
    return _REPOSITORIES.get(repo.lower())


def concrete_parser(name: str, instance_id: str, version: str) -> str:
    """The parser that reads this instance's logs, for the four names that stand for several.

    Example: `concrete_parser("parse_log_next", "alibaba-fusion__next-1", "1.27") == "parse_log_next_v2"`.
    Raises ConfigError for an instance or version of which the official package knows no parser.
    """
    try:
        return _concrete(name, instance_id, version)
    except (KeyError, ValueError, IndexError) as error:
        raise ConfigError(
            f"instance {instance_id} (version {version!r}): `{name}` knows no such instance or version"
        ) from error


def _concrete(name: str, instance_id: str, version: str) -> str:
    if name == "parse_log_jekyll":
        return _JEKYLL[instance_id.split("-")[1]]
    if name == "parse_log_immutable_js":
        return _IMMUTABLE[instance_id.split("-")[-1]]
    if name == "parse_log_next":
        return "parse_log_next_v2" if version == "1.27" else "parse_log_next_v1"
    if name == "parse_log_lighthouse":
        return _lighthouse(version)
    return name


def _lighthouse(version: str) -> str:
    if version in ("9.5", "10.0", "10.2"):
        return "parse_log_lighthouse_mocha"
    return "parse_log_lighthouse_jest" if float(version) >= 3 else "parse_log_lighthouse_json"
