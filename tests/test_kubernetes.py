"""The deployment sketch: valid YAML whose parts fit together, and commands that tffcl knows."""

import pathlib
import re

import pytest

from tffcl.lab.cli.main import build_parser
from tffcl.runtime import RemoteWorkers

yaml = pytest.importorskip("yaml")

FILE = pathlib.Path(__file__).parents[1] / "notebooks" / "kubernetes.yaml"


@pytest.fixture(scope="module")
def objects():
    found = list(yaml.safe_load_all(FILE.read_text(encoding="utf-8")))
    assert all({"apiVersion", "kind", "metadata", "spec"} == set(each) for each in found)
    by_kind = {each["kind"]: each for each in found}
    assert len(by_kind) == len(found)
    return by_kind


def test_versions(objects):
    assert {kind: each["apiVersion"] for kind, each in objects.items()} == {
        "StatefulSet": "apps/v1",
        "Service": "v1",
        "NetworkPolicy": "networking.k8s.io/v1",
        "PersistentVolumeClaim": "v1",
        "Job": "batch/v1",
    }


def test_selectors_match_labels_and_ports_agree(objects):
    workers, service, policy, job = (
        objects[kind]["spec"] for kind in ("StatefulSet", "Service", "NetworkPolicy", "Job")
    )
    labels = workers["template"]["metadata"]["labels"]
    assert workers["selector"]["matchLabels"] == service["selector"] == policy["podSelector"]["matchLabels"] == labels
    assert (
        policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == job["template"]["metadata"]["labels"] != labels
    )
    assert workers["serviceName"] == objects["Service"]["metadata"]["name"] and service["clusterIP"] == "None"
    (container,) = workers["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert service["ports"][0]["targetPort"] == container["readinessProbe"]["tcpSocket"]["port"] == port["name"]
    assert service["ports"][0]["port"] == policy["ingress"][0]["ports"][0]["port"] == port["containerPort"]
    assert build_parser().parse_args(container["command"][1:]).port == port["containerPort"]


def test_the_job_knows_every_worker(objects):
    spec = objects["Job"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    options = build_parser().parse_args(container["command"][1:])
    addresses = RemoteWorkers.parse(options.workers, options.worker_timeout).addresses
    name, workers = objects["StatefulSet"]["metadata"]["name"], objects["StatefulSet"]["spec"]
    expected = [f"{name}-{place}.{workers['serviceName']}:10000" for place in range(workers["replicas"])]
    assert list(map(str, addresses)) == expected
    assert options.resume and spec["restartPolicy"] == "OnFailure"
    assert options.out.startswith(container["volumeMounts"][0]["mountPath"])
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in spec["volumes"]}
    (volume,) = [each for each in spec["volumes"] if each["name"] == container["volumeMounts"][0]["name"]]
    assert volume["persistentVolumeClaim"]["claimName"] == objects["PersistentVolumeClaim"]["metadata"]["name"]
    images = {each["containers"][0]["image"] for each in (spec, workers["template"]["spec"])}
    assert len(images) == 1


def test_pods_may_do_what_they_need_and_no_more(objects):
    for kind in ("StatefulSet", "Job"):
        pod = objects[kind]["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"]
        (container,) = pod["containers"]
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False and rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]["limits"]) == {"cpu", "memory"}
        places = {each["mountPath"] for each in container["volumeMounts"]}
        assert {
            each["value"] for each in container["env"] if each["name"] == "HOME"
        } <= places  # the rest cannot be written
    worker = objects["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    assert worker["livenessProbe"]["tcpSocket"] == worker["readinessProbe"]["tcpSocket"]
    policy = objects["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["egress"] == []
    assert objects["Job"]["spec"]["activeDeadlineSeconds"] > 0


def test_what_is_said_of_the_readme_is_there():
    section, what = re.search(r'\(README, "(.+?)": (.+?)\)', FILE.read_text(encoding="utf-8")).groups()
    readme = (FILE.parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"## {section}\n" in readme and what.capitalize() in readme
