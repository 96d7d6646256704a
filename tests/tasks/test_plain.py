import pytest

from patchwright.tasks.plain import NotPlain, Program, passes_tests


def test_calls_give_values_errors_and_endlessness():
    program = Program(
        "def f(x):\n    while x > 1:\n        x -= 2\n    return 6 // x\n\n"
        "def g(x):\n    while x:\n        x += 1\n"
    )
    assert program.call("f", (3,)).gives(6)
    assert program.call("f", (4,)).error == "ZeroDivisionError"
    assert program.call("g", (1,)).endless
    assert program.call("f", (3,)).gives(6), "the budget is per call"


@pytest.mark.parametrize(
    "body",
    ["for x in xs:\n        xs.append(x)", "return [xs.append(x) for x in xs]", "while xs:\n        pass"],
)
def test_every_loop_counts_its_steps(body):
    assert Program(f"def f(xs):\n    {body}\n").call("f", ([1],)).endless


def test_arguments_are_copied_deeply():
    argument = [[1], {"a": [2]}]
    Program("def f(xs):\n    xs[0].append(3)\n    xs[1].get('a').append(3)\n").call("f", (argument,))
    assert argument == [[1], {"a": [2]}]


@pytest.mark.parametrize(
    "source",
    [
        "import os\n",
        "x = 1\n",
        "def f():\n    import os\n",
        "def f(x):\n    return x.__class__\n",
        "def f(x):\n    return x.format('{0.__class__}')\n",
        "def f():\n    return __import__('os')\n",
        "def f():\n    try:\n        g()\n    except:\n        pass\n",
        "def f():\n    return 9 ** 9 ** 9\n",
        "@print\ndef f():\n    pass\n",
        "class A:\n    pass\n",
        "def f(:\n",
        "def f():\n    return '\0'\n",
        "def f(x):\n    return f'{x!r:{x}}'\n",
        "def f():\n    global _tick\n",
        "def f():\n    return lambda: 1\n",
    ],
)
def test_what_is_more_than_the_small_language_is_not_run(source):
    with pytest.raises(NotPlain):
        Program(source)


def test_builtins_that_reach_out_are_not_there():
    for name in ("open", "eval", "getattr", "print", "input"):
        assert Program(f"def f():\n    return {name}\n").call("f", ()).error == "NameError"


def test_a_test_file_passes_or_not():
    tests = "from mod import f\n\ndef test_1():\n    assert f(1) == 2\ndef test_2():\n    assert f(2) == 3\n"
    assert passes_tests("def f(x):\n    return x + 1\n", tests)
    assert not passes_tests("def f(x):\n    return 2\n", tests)
    assert not passes_tests("def f(x):\n    while x:\n        x += 1\n", tests)
    with pytest.raises(NotPlain):
        passes_tests("def f(x):\n    return x + 1\n", "import os\n")
