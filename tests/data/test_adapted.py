from __future__ import annotations

import json

import pytest

from cudt.data.adapted import base_of
from cudt.utils.errors import UserError


def test_the_base_model_is_the_one_that_the_adapter_names(tmp_path):
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"base_model_name_or_path": "owner/name", "revision": "v1", "r": 2}))
    base = base_of(file)
    assert (base, base.revision, base.trusts_code) == ("owner/name", "v1", False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "does not name the model"),
        (json.dumps({"base_model_name_or_path": ""}), "does not name the model"),
        (json.dumps({"base_model_name_or_path": 3}), "does not name the model"),
    ],
)
def test_an_adapter_without_a_base_model_is_refused_in_one_line(content, message, tmp_path):
    file = tmp_path / "adapter_config.json"
    file.write_text(content)
    with pytest.raises(UserError, match=message) as raised:
        base_of(file)
    assert "\n" not in str(raised.value)
