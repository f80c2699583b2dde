"""Compare manifests with the classes of KServe's own package; run where that is installed.

Every field has to be one that KServe's class has, and of its type; Pod fields one of Kubernetes'.
"""

import re
import sys

import kserve.models
import kubernetes.client.models
import yaml

KINDS = {"ServingRuntime": "V1alpha1ServingRuntime", "InferenceService": "V1beta1InferenceService"}
PLAIN = {"str": str, "int": int, "bool": bool}


def check(value, kind, where):
    """Compare a value with a type as the package writes it, such as list[V1Container]."""
    if item := re.fullmatch(r"list\[(.*)\]", kind):
        assert isinstance(value, list), where
        for number, entry in enumerate(value):
            check(entry, item[1], f"{where}[{number}]")
    elif kind in PLAIN:
        assert isinstance(value, PLAIN[kind]), f"{where} is no {kind}"
    elif of_kserve := getattr(kserve.models, kind, None):
        fields = {of_kserve.attribute_map[name]: of for name, of in of_kserve.openapi_types.items()}
        for name, entry in value.items():
            assert name in fields, f"{where} has no field {name}"
            check(entry, fields[name], f"{where}.{name}")
    else:
        of_kubernetes = getattr(kubernetes.client.models, kind)
        read = given(of_kubernetes.from_dict(value).to_dict(serialize=True))
        assert read == value, f"{where}: {read}"


def given(value):
    """Leave out fields that have no value."""
    if isinstance(value, list):
        return [given(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {name: given(entry) for name, entry in value.items() if entry is not None}


with open(sys.argv[1]) as file:
    for manifest in yaml.safe_load_all(file):
        check(manifest, KINDS[manifest["kind"]], manifest["kind"])
        print(manifest["kind"])
