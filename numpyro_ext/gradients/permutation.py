"""Random permutations that are looked up place by place instead of being written out.

``jax.random.permutation`` sorts all rows. Of cheap models that takes longer than the steps that
the rows last for, and under a map over chains it would run at every step.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax, random
from jaxtyping import Int, Int32, UInt32

#: Rounds of the network. With 12 the permutations of five are visibly uneven in 200,000 draws.
ROUNDS = 16


def draw_order(key: Array, lead: tuple[int, ...] = ()) -> UInt32[Array, "*P rounds"]:
    """What a random permutation is known by, of any number of rows.

    Parameters
    ----------
    key : Array
        One key.
    lead : tuple of int
        Shape of independent orders.

    Returns
    -------
    Array
        Shape (*lead, ``ROUNDS``), uint32.
    """
    return random.bits(key, (*lead, ROUNDS), jnp.uint32)


def permuted(
    order: UInt32[Array, "*P rounds"], places: Int[Array, "*shape"], size: int
) -> Int32[Array, " ..."]:
    """Entries of a random permutation of ``range(size)`` at some of its places.

    The rows are laid out in a rectangle, whose two coordinates are shifted in turn by random
    functions of each other; what falls beside the rows is sent through again. So all places
    together hold every row once, whatever the functions.

    Parameters
    ----------
    order : Array
        Of :func:`draw_order`, shape (``ROUNDS``,), or (P, ``ROUNDS``) for P permutations.
    places : Array
        Integers from 0 to ``size`` - 1, of any shape.
    size : int
        Length of the permutation, less than 2^31.

    Returns
    -------
    Array
        Of ``places``' shape, behind P where there are P permutations; int32.

    References
    ----------
    J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002: the network
    over two coordinates (their third method) and the walk back into the domain (their second).
    """
    if order.ndim > 1:
        return jax.vmap(permuted, (0, None, None))(order, places, size)
    # Nearly a square, so that the two coordinates have about as many values each; fewer places than
    # it is high lie beside the rows.
    height = math.isqrt(size - 1) + 1
    width = -(-size // height)

    def sent_through(row: Array) -> Array:
        upper, lower = row // width, row % width
        for number in range(ROUNDS):
            if number % 2:
                upper = _shifted(upper, lower, order[number], height)
            else:
                lower = _shifted(lower, upper, order[number], width)
        return upper * width + lower

    def outside(row: Array) -> Array:
        return (row >= size).any()

    def again(row: Array) -> Array:
        # Walks on from where it fell: a bijection of the rectangle comes back to the rows in the
        # end, and two rows never to one place.
        return jnp.where(row >= size, sent_through(row), row)

    rows = sent_through(places.astype(jnp.uint32))
    return lax.while_loop(outside, again, rows).astype(jnp.int32)


def next_rows(
    key: Array, size: int, count: int, order: UInt32[Array, "*P rounds"], position: Int[Array, ""]
) -> tuple[Int32[Array, "*P count"], UInt32[Array, "*P rounds"], Int[Array, ""]]:
    """The next rows of an order that is gone through, and where that leaves it.

    A new order is drawn, and begun at its start, when fewer than ``count`` rows are left.

    Returns
    -------
    rows : Array
        Shape (``count``,), or (P, ``count``) for P orders.
    order, position : Array
        For the next call.
    """
    ended = position + count > size
    order = jnp.where(ended, draw_order(key, order.shape[:-1]), order)
    position = jnp.where(ended, 0, position)
    return permuted(order, position + jnp.arange(count), size), order, position + count


# Under ``jax.jit`` a round is traced and lowered once for all that are alike.
@partial(jax.jit, static_argnames="extent")
def _shifted(coordinate: Array, other: Array, key: Array, extent: int) -> Array:
    """The coordinate plus a random number below its extent of the other one, going round."""
    # Sixteen bits suffice, as extents are below 2^16, and their product stays within 32.
    moved = coordinate + ((_hash(other, key) >> 16) * jnp.uint32(extent) >> 16)
    return jnp.where(moved >= extent, moved - extent, moved)


def _hash(value: Array, key: Array) -> Array:
    """32 bits that look random: the last step of MurmurHash3, after a key."""
    # A prime near 2^32 divided by the golden ratio, as in Knuth's multiplicative hashing; the other
    # two are MurmurHash3's.
    mixed = (value ^ key) * jnp.uint32(0x9E3779B1)
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> 16)
