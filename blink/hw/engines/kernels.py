"""The step's kernels in Triton, for NVIDIA GPUs. `plain.py` computes the same in PyTorch and is their reference.

A result of a row depends on that row alone, bit for bit: every reduction runs over tiles of a fixed size in a fixed
order, whatever the number of rows, of padding rows and of other sequences. TRITON_INTERPRET=1 runs the kernels on a
CPU.

Rows are tokens: (batch x sequence) of them in a prefill, (batch) in a decode. Matrices are (outputs, inputs),
row-major. A layer's cache is (2, blocks, kv_heads, block_tokens, head_size): keys, then values.
"""

from __future__ import annotations

# ruff: noqa: N803  (names of compile-time constants are upper case in Triton)
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def embed_kernel(tokens, embedding, out, hidden, BLOCK: tl.constexpr):
    """out[row] = embedding[tokens[row]]."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + row).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(embedding + token * hidden + at, mask=at < hidden)
    tl.store(out + row * hidden + at, value, mask=at < hidden)


@triton.jit
def add_norm_kernel(x, delta, weight, out, hidden, epsilon, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """x[row] += delta[row] if ADD; out[row] = RMSNorm(x[row]) * weight."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < hidden
    value = tl.load(x + row * hidden + at, mask=inside, other=0.0)
    if ADD:
        value = (value.to(tl.float32) + tl.load(delta + row * hidden + at, mask=inside, other=0.0)).to(value.dtype)
        tl.store(x + row * hidden + at, value, mask=inside)
    wide = value.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / hidden + epsilon)
    scaled = wide * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + at, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def linear_kernel(
    x,
    weight,
    out,
    rows,
    outputs,
    inputs,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """out = x @ weight^T: (rows, inputs) by (outputs, inputs). Tiles of one column of tiles run side by side."""
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(rows, BLOCK_M)
    row = (pid % tiles_m).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = (pid // tiles_m).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x + row[:, None] * inputs + k[None, :]
    weight_at = weight + column[None, :] * inputs + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, inputs, BLOCK_K):
        left = tl.load(x_at, mask=(row[:, None] < rows) & (start + k[None, :] < inputs), other=0.0)
        right = tl.load(weight_at, mask=(column[None, :] < outputs) & (start + k[:, None] < inputs), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        x_at += BLOCK_K
        weight_at += BLOCK_K
    to = out + row[:, None] * outputs + column[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=(row[:, None] < rows) & (column[None, :] < outputs))


@triton.jit
def gated_kernel(gate_up, out, size, BLOCK: tl.constexpr):
    """out[row] = silu(gate) * up of gate_up (rows, 2 size)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_up + row * 2 * size + at, mask=at < size, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + at, mask=at < size, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * size + at, value.to(out.dtype.element_ty), mask=at < size)


@triton.jit
def _heads(
    qkv, norm, row, width, first, position, cosines, sines, epsilon,
    COUNT: tl.constexpr, COUNT_PAD: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Both halves of COUNT heads of a row, normed if NORM and rotated to `position`: float32 (COUNT_PAD, HALF) each.

    The halves are the first and second elements of the pairs that rotate together.
    """
    head = tl.arange(0, COUNT_PAD)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    low = 2 * pair if INTERLEAVED else pair
    high = low + 1 if INTERLEAVED else low + HALF
    start = qkv + row * width + first + head * 2 * HALF
    a = tl.load(start + low, mask=head < COUNT, other=0.0).to(tl.float32)
    b = tl.load(start + high, mask=head < COUNT, other=0.0).to(tl.float32)
    if NORM:
        scale = 1.0 / tl.sqrt(tl.sum(a * a + b * b, 1) / (2 * HALF) + epsilon)
        a = a * scale[:, None] * tl.load(norm + low).to(tl.float32)
        b = b * scale[:, None] * tl.load(norm + high).to(tl.float32)
    cosine = tl.load(cosines + position * HALF + pair)
    sine = tl.load(sines + position * HALF + pair)
    return a * cosine - b * sine, b * cosine + a * sine, low, high, head


@triton.jit
def rotate_store_kernel(
    qkv, query_norm, key_norm, query, cache, tables, context_tokens, query_tokens, cosines, sines,
    epsilon, sequence, table_width, cache_values,
    HEADS: tl.constexpr, HEADS_PAD: tl.constexpr, KV_HEADS: tl.constexpr, KV_HEADS_PAD: tl.constexpr,
    HALF: tl.constexpr, BLOCK_TOKENS: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Rotated queries into `query`, rotated keys and values into the sequence's KV blocks. Padding tokens store
    nothing.

    `cache_values`: elements from the keys to the values in a layer's cache.
    """
    row = tl.program_id(0).to(tl.int64)
    sequence_index, token = row // sequence, row % sequence
    if token < tl.load(query_tokens + sequence_index):
        size: tl.constexpr = 2 * HALF
        width: tl.constexpr = (HEADS + 2 * KV_HEADS) * size
        position = tl.load(context_tokens + sequence_index) + token
        # Names differ between the branches: a name has one type in a kernel.
        if tl.program_id(1) == 0:
            a, b, low, high, head = _heads(
                qkv, query_norm, row, width, 0, position, cosines, sines, epsilon,
                HEADS, HEADS_PAD, HALF, INTERLEAVED, NORM,
            )  # fmt: skip
            to = query + (row * HEADS + head) * size
            tl.store(to + low, a.to(query.dtype.element_ty), mask=head < HEADS)
            tl.store(to + high, b.to(query.dtype.element_ty), mask=head < HEADS)
        else:
            block = tl.load(tables + sequence_index * table_width + position // BLOCK_TOKENS).to(tl.int64)
            k_a, k_b, k_low, k_high, kv_head = _heads(
                qkv, key_norm, row, width, HEADS * size, position, cosines, sines, epsilon,
                KV_HEADS, KV_HEADS_PAD, HALF, INTERLEAVED, NORM,
            )  # fmt: skip
            store = cache + ((block * KV_HEADS + kv_head) * BLOCK_TOKENS + position % BLOCK_TOKENS) * size
            tl.store(store + k_low, k_a.to(cache.dtype.element_ty), mask=kv_head < KV_HEADS)
            tl.store(store + k_high, k_b.to(cache.dtype.element_ty), mask=kv_head < KV_HEADS)
            element = tl.arange(0, size)[None, :]
            value = tl.load(
                qkv + row * width + (HEADS + KV_HEADS + kv_head) * size + element, mask=kv_head < KV_HEADS, other=0.0
            )
            tl.store(store + cache_values + element, value, mask=kv_head < KV_HEADS)


@triton.jit
def store_kernel(
    keys, values, cache, tables, context_tokens, query_tokens, sequence, table_width, cache_values,
    KV_HEADS: tl.constexpr, KV_HEADS_PAD: tl.constexpr, SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    """Keys and values (batch, sequence, kv_heads, SIZE) of one layer into the KV blocks; padding stores nothing."""
    row = tl.program_id(0).to(tl.int64)
    sequence_index, token = row // sequence, row % sequence
    if token < tl.load(query_tokens + sequence_index):
        position = tl.load(context_tokens + sequence_index) + token
        block = tl.load(tables + sequence_index * table_width + position // BLOCK_TOKENS).to(tl.int64)
        head = tl.arange(0, KV_HEADS_PAD)[:, None]
        element = tl.arange(0, SIZE)[None, :]
        at = (row * KV_HEADS + head) * SIZE + element
        to = cache + ((block * KV_HEADS + head) * BLOCK_TOKENS + position % BLOCK_TOKENS) * SIZE + element
        tl.store(to, tl.load(keys + at, mask=head < KV_HEADS), mask=head < KV_HEADS)
        tl.store(to + cache_values, tl.load(values + at, mask=head < KV_HEADS), mask=head < KV_HEADS)


@triton.jit
def _attend(
    q, keys, values, table, kv_head, start, limit, bound, top, total, sums, scale,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Online softmax (Milakov and Gimelshein 2018) of one tile of keys, at positions start to start + BLOCK_N - 1.

    `limit`: positions that exist; `bound` (rows of q): the last position that a row may see.
    """
    position = start + tl.arange(0, BLOCK_N)
    inside = position < limit
    block = tl.load(table + position // BLOCK_TOKENS, mask=inside, other=0).to(tl.int64)
    at = ((block * KV_HEADS + kv_head) * BLOCK_TOKENS + position % BLOCK_TOKENS) * SIZE
    element = tl.arange(0, SIZE)
    k = tl.load(keys + at[None, :] + element[:, None], mask=inside[None, :], other=0.0)
    score = tl.dot(q, k, input_precision=PRECISION) * scale
    score = tl.where(inside[None, :] & (position[None, :] <= bound[:, None]), score, -1.0e38)
    higher = tl.maximum(top, tl.max(score, 1))
    share = tl.exp(score - higher[:, None])
    fade = tl.exp(top - higher)
    v = tl.load(values + at[:, None] + element[None, :], mask=inside[:, None], other=0.0)
    sums = sums * fade[:, None] + tl.dot(share.to(v.dtype), v, input_precision=PRECISION)
    return higher, total * fade + tl.sum(share, 1), sums


@triton.jit
def decode_attention_kernel(
    query, cache, tables, context_tokens, query_tokens, part_sums, part_marks, scale, table_width, cache_values,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, SIZE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, CHUNK: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One chunk of CHUNK positions of one sequence and KV head: unscaled sums, and (maximum, total) of the softmax.

    `part_sums` (batch, heads, chunks, SIZE) and `part_marks` (batch, heads, chunks, 2) are float32.
    """
    row, kv_head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(context_tokens + row) + tl.load(query_tokens + row)
    start = chunk * CHUNK
    if start < length:
        member = tl.arange(0, GROUP_PAD)
        element = tl.arange(0, SIZE)
        head = row * KV_HEADS * GROUP + kv_head * GROUP + member
        mine = (member < GROUP)[:, None]
        q = tl.load(query + head[:, None] * SIZE + element[None, :], mask=mine, other=0.0)
        top = tl.full((GROUP_PAD,), -1.0e38, tl.float32)
        total = tl.zeros((GROUP_PAD,), tl.float32)
        sums = tl.zeros((GROUP_PAD, SIZE), tl.float32)
        bound = tl.zeros((GROUP_PAD,), tl.int32) + length
        for at in range(start, tl.minimum(start + CHUNK, length), BLOCK_N):
            top, total, sums = _attend(
                q, cache, cache + cache_values, tables + row * table_width, kv_head, at, length, bound,
                top, total, sums, scale, KV_HEADS, SIZE, BLOCK_TOKENS, BLOCK_N, PRECISION,
            )  # fmt: skip
        part = head * tl.num_programs(2) + chunk
        tl.store(part_sums + part[:, None] * SIZE + element[None, :], sums, mask=mine)
        tl.store(part_marks + part * 2, top, mask=member < GROUP)
        tl.store(part_marks + part * 2 + 1, total, mask=member < GROUP)


@triton.jit
def merge_chunks_kernel(
    part_sums, part_marks, context_tokens, query_tokens, out, chunk_count,
    HEADS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr, BLOCK_CHUNKS: tl.constexpr,
):  # fmt: skip
    """Attention of one sequence and head from its chunks: out (batch, heads, SIZE). A padding row becomes zeros."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(context_tokens + row) + tl.load(query_tokens + row)
    length = tl.where(tl.load(query_tokens + row) > 0, length, 0)
    used = tl.cdiv(length, CHUNK)
    first = (row * HEADS + head) * chunk_count
    element = tl.arange(0, SIZE)
    top = tl.full((), -1.0e38, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    sums = tl.zeros((SIZE,), tl.float32)
    for at in range(0, used, BLOCK_CHUNKS):
        chunk = at + tl.arange(0, BLOCK_CHUNKS)
        inside = chunk < used
        part = first + chunk
        tops = tl.load(part_marks + part * 2, mask=inside, other=-1.0e38)
        higher = tl.maximum(top, tl.max(tops, 0))
        weight = tl.where(inside, tl.exp(tops - higher), 0.0)
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(tl.load(part_marks + part * 2 + 1, mask=inside, other=0.0) * weight, 0)
        values = tl.load(part_sums + part[:, None] * SIZE + element[None, :], mask=inside[:, None], other=0.0)
        sums = sums * fade + tl.sum(values * weight[:, None], 0)
        top = higher
    value = tl.where(used > 0, sums / tl.where(used > 0, total, 1.0), 0.0)
    tl.store(out + (row * HEADS + head) * SIZE + element, value.to(out.dtype.element_ty))


@triton.jit
def prefill_attention_kernel(
    query, cache, tables, query_tokens, out, scale, sequence, table_width, cache_values,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Causal attention of BLOCK_M prompt tokens of one head over the KV blocks that the prompt has just filled."""
    tile, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    length = tl.load(query_tokens + row)
    token = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    element = tl.arange(0, SIZE)
    at = ((row * sequence + token) * KV_HEADS * GROUP + head)[:, None] * SIZE + element[None, :]
    exists = (token < sequence)[:, None]
    if tile * BLOCK_M < length:
        q = tl.load(query + at, mask=exists & (token < length)[:, None], other=0.0)
        top = tl.full((BLOCK_M,), -1.0e38, tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        sums = tl.zeros((BLOCK_M, SIZE), tl.float32)
        for start in range(0, tl.minimum((tile + 1) * BLOCK_M, length), BLOCK_N):
            top, total, sums = _attend(
                q, cache, cache + cache_values, tables + row * table_width, head // GROUP, start, length, token,
                top, total, sums, scale, KV_HEADS, SIZE, BLOCK_TOKENS, BLOCK_N, PRECISION,
            )  # fmt: skip
        tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), mask=exists)
    else:
        # What nobody computes must still be finite: rows of padding go through the rest of the layer.
        tl.store(out + at, tl.zeros((BLOCK_M, SIZE), out.dtype.element_ty), mask=exists)


@triton.jit
def last_rows_kernel(x, query_tokens, out, sequence, hidden, BLOCK: tl.constexpr):
    """out[row] = x at the row's last real token; x (batch, sequence, hidden)."""
    row = tl.program_id(0).to(tl.int64)
    last = tl.maximum(tl.load(query_tokens + row) - 1, 0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + (row * sequence + last) * hidden + at, mask=at < hidden)
    tl.store(out + row * hidden + at, value, mask=at < hidden)


@triton.jit
def _ordered(logit):
    """An int32 that orders as the float32 does."""
    bits = logit.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _logits_at(logits, at, size, barred):
    """Logits of the tokens `at`; minus infinity past the vocabulary, and of the token `barred`."""
    logit = tl.load(logits + at, mask=at < size, other=float("-inf"))
    return tl.where(at == barred, float("-inf"), logit)  # in the mask of the load it would split the load


@triton.jit
def _weight_at_least(logits, size, barred, bound, floor, top, temperature, BLOCK: tl.constexpr, COUNT: tl.constexpr):
    """Number, or total softmax weight relative to `top`, of the tokens whose order is at least bound and floor."""
    parts = tl.zeros((BLOCK,), tl.float32)
    counts = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        logit = _logits_at(logits, at, size, barred)
        order = _ordered(logit)
        taken = (order >= bound) & (order >= floor) & (at < size)
        if COUNT:
            counts += taken.to(tl.int32)
        else:
            parts += tl.where(taken, tl.exp((logit - top) / temperature), 0.0)
    if COUNT:
        return tl.sum(counts, 0).to(tl.float32)
    else:
        return tl.sum(parts, 0)


@triton.jit
def _threshold(
    logits, size, barred, floor, highest, wanted, top, temperature, BLOCK: tl.constexpr, COUNT: tl.constexpr
):  # fmt: skip
    """The highest order at or above which the tokens weigh at least `wanted`, by bisection."""
    low = floor.to(tl.int64)
    high = highest.to(tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        weight = _weight_at_least(logits, size, barred, middle.to(tl.int32), floor, top, temperature, BLOCK, COUNT)
        if weight >= wanted:
            low = middle
        else:
            high = middle - 1
    return low.to(tl.int32)


@triton.jit
def sample_kernel(
    logits, temperatures, top_ps, top_ks, seeds, sample_indices, min_tokens, sampled, size, eos_token,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """sampled[row] from float32 logits (batch, size); see sampling.py for what it computes. No end token: -1."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * size
    index = tl.load(sample_indices + row).to(tl.uint32, bitcast=True)
    barred = tl.where(index < tl.load(min_tokens + row).to(tl.uint32, bitcast=True), eos_token, -1)
    temperature = tl.load(temperatures + row)
    best = tl.full((), float("-inf"), tl.float32)
    token = tl.full((), 0, tl.int32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        logit = _logits_at(logits, at, size, barred)
        value, place = tl.max(logit, 0, return_indices=True)
        token = tl.where(value > best, start + place, token)
        best = tl.maximum(best, value)
    if temperature > 0:
        top = best
        highest = _ordered(top)
        floor = tl.full((), -2147483648, tl.int32)
        top_k = tl.load(top_ks + row)
        if (top_k > 0) & (top_k < size):
            floor = _threshold(
                logits, size, barred, floor, highest, top_k.to(tl.float32), top, temperature, BLOCK, True
            )
        top_p = tl.load(top_ps + row)
        if top_p < 1:
            wanted = top_p * _weight_at_least(logits, size, barred, floor, floor, top, temperature, BLOCK, False)
            floor = _threshold(logits, size, barred, floor, highest, wanted, top, temperature, BLOCK, False)
        low = tl.load(seeds + row).to(tl.uint32, bitcast=True).to(tl.uint64)
        high = index.to(tl.uint64)
        key = low | (high << 32)
        best = tl.full((), float("-inf"), tl.float32)
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            logit = _logits_at(logits, at, size, barred)
            zero = at * 0
            word, _, _, _ = tl.philox(key, at, zero, zero, zero)
            # 1 - u loses the digits of a small u, which is what decides: a series there, a logarithm elsewhere.
            u = (word.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * 2.3283064365386963e-10
            u = tl.minimum(u, 0.99999994)
            wait = tl.where(u < 0.015625, u * (1 + u * (0.5 + u * (0.33333334 + u * 0.25))), -tl.log(1 - u))
            score = (logit - top) / temperature - tl.log(wait)
            score = tl.where((_ordered(logit) >= floor) & (at < size), score, float("-inf"))
            value, place = tl.max(score, 0, return_indices=True)
            token = tl.where(value > best, start + place, token)
            best = tl.maximum(best, value)
    tl.store(sampled + row, token)
