"""The proof of a handshake, and the address that never travels towards dispatchers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatch.protocol.frames import PROOF_BYTES, create_address, derive_address, derive_proof

NONCE = bytes(range(16))
ADDRESS = 7_720_967_916_697_048_404
PROOF = "d80fe87f2589542ca176a5dce7e8fe95"


def test_the_proof_depends_on_everything_that_the_callee_states() -> None:
    proofs = {
        derive_proof("secret", 1, NONCE, "i0", "run"),
        derive_proof("Secret", 1, NONCE, "i0", "run"),
        derive_proof("secret", 2, NONCE, "i0", "run"),
        derive_proof("secret", 1, NONCE[::-1], "i0", "run"),
        derive_proof("secret", 1, NONCE, "i1", "run"),
        derive_proof("secret", 1, NONCE, "i0", "later"),
    }
    assert len(proofs) == 6
    assert {len(proof) for proof in proofs} == {PROOF_BYTES}


def test_no_text_moves_between_the_name_and_the_incarnation() -> None:
    assert derive_proof("s", 1, NONCE, "a b", "c") != derive_proof("s", 1, NONCE, "a", "b c")


def test_the_address_depends_on_the_secret_the_caller_and_the_nonce() -> None:
    addresses = {
        derive_address("secret", 1, NONCE),
        derive_address("Secret", 1, NONCE),
        derive_address("secret", 2, NONCE),
        derive_address("secret", 1, NONCE[::-1]),
    }
    assert len(addresses) == 4


def test_an_address_has_63_bits_and_is_not_0() -> None:
    """0 is the address of a HELLO."""
    assert [create_address(bytes(7) + bytes([low])) for low in range(6)] == [1, 1, 1, 1, 2, 2]
    assert create_address(b"\xff" * 8) == 2**63 - 1


def test_the_proof_does_not_reveal_the_address() -> None:
    address = derive_address("secret", 1, NONCE)
    assert address.to_bytes(8, "big") not in derive_proof("secret", 1, NONCE, "i0", "run")


def test_both_sides_derive_the_same_values() -> None:
    """Peers may run different versions of this module: the values belong to the protocol."""
    assert derive_address("secret", 1, NONCE) == ADDRESS
    assert derive_proof("secret", 1, NONCE, "i0", "run").hex() == PROOF


@given(
    st.text(max_size=64).filter(lambda text: len(text.encode()) <= 64),
    st.integers(0, 2**63 - 1),
    st.binary(max_size=64),
)
def test_an_address_has_63_bits_and_is_not_that_of_a_hello(secret: str, id: int, nonce: bytes) -> None:
    assert 0 < derive_address(secret, id, nonce) < 2**63
