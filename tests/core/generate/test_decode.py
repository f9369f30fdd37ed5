def test_x(outcome):
    print(outcome.receipt)
    assert 0
