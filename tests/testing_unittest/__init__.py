import pytest

pytest.importorskip("expecttest", reason="torch's TestCase needs the package expecttest")
