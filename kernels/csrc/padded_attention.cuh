// Attention of one query a row on cached keys, of which a row's first ones are pads. NVRTC compiles this for mlx.
//
// A block of threads serves one row and the HEADS query heads that share one head of keys. 16 lanes read a key and its value, each lane
// its part, and keep a running softmax of the keys that they have seen; at the end these are put together.
//
//     keys of a row   . . . 0 1 2 3 4 5 6      pads are not read; the lanes of group g take the keys g, g + GROUPS, ...
//
// A row's keys are counted from its first one, so its bits do not depend on how many pads stand in front, nor on the other rows.

// N numbers next to each other in memory, read in words as wide as they allow.
template <typename T, int N>
struct Numbers {
  T of[N];
  static constexpr int BYTES = N * sizeof(T);
  static constexpr int WORD = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : BYTES % 4 == 0 ? 4 : 2;

  template <typename Word>
  __device__ void copy(const T* from) {
    for (int i = 0; i < BYTES / int(sizeof(Word)); i++) {
      reinterpret_cast<Word*>(of)[i] = __ldg(reinterpret_cast<const Word*>(from) + i);
    }
  }

  __device__ void read(const T* from) {
    if constexpr (WORD == 16) {
      copy<uint4>(from);
    } else if constexpr (WORD == 8) {
      copy<uint2>(from);
    } else if constexpr (WORD == 4) {
      copy<unsigned>(from);
    } else {
      for (int i = 0; i < N; i++) of[i] = from[i];
    }
  }
};

// queries [B, H, 1, D], keys and values [B, K, L, D] of any strides but the last of keys and values, which is 1. first [B]: a row's pads.
// out [B, H, 1, D]. scale: of the products, times log2(e). SHARED: query heads of a key head; gridDim: K, B, SHARED / HEADS.
template <typename T, int D, int SHARED, int HEADS, int THREADS, typename Shape, typename Strides>
__device__ void attend(
    const T* queries, const Strides& query_strides, const T* keys, const Shape& key_shape, const Strides& key_strides, const T* values,
    const Strides& value_strides, const int* first, float scale, T* out) {
  constexpr int LANES = 16, PART = D / LANES, GROUPS = THREADS / LANES, WARPS = THREADS / 32;
  constexpr int AHEAD = 4;  // keys that are read before the first of them is needed
  const int group = threadIdx.x / LANES, lane = threadIdx.x % LANES, warp = threadIdx.x / 32;
  const unsigned mates = 0xffffu << (threadIdx.x & 16);
  const int shared = blockIdx.x, row = blockIdx.y, head = shared * SHARED + blockIdx.z * HEADS;
  const int pads = first[row], count = int(key_shape[2]) - pads;
  keys += row * key_strides[0] + shared * key_strides[1] + pads * key_strides[2] + lane * PART;
  values += row * value_strides[0] + shared * value_strides[1] + pads * value_strides[2] + lane * PART;
  queries += row * query_strides[0];

  float query[HEADS][PART], sum[HEADS][PART], peak[HEADS], total[HEADS];
  for (int h = 0; h < HEADS; h++) {
    peak[h] = -INFINITY;
    total[h] = 0;
    for (int i = 0; i < PART; i++) {
      query[h][i] = scale * float(queries[(head + h) * query_strides[1] + (lane * PART + i) * query_strides[3]]);
      sum[h][i] = 0;
    }
  }

  for (int at = group; at < count; at += AHEAD * GROUPS) {
    Numbers<T, PART> k[AHEAD], v[AHEAD];
    for (int a = 0; a < AHEAD; a++) {
      const int64_t j = min(at + a * GROUPS, count - 1);
      k[a].read(keys + j * key_strides[2]);
      v[a].read(values + j * value_strides[2]);
    }
    for (int h = 0; h < HEADS; h++) {
      float score[AHEAD], most = peak[h];
      for (int a = 0; a < AHEAD; a++) {
        score[a] = 0;
        for (int i = 0; i < PART; i++) score[a] += query[h][i] * float(k[a].of[i]);
        for (int step = LANES / 2; step > 0; step /= 2) score[a] += __shfl_xor_sync(mates, score[a], step);
        if (at + a * GROUPS >= count) score[a] = -INFINITY;
        most = fmaxf(most, score[a]);
      }
      const float shrink = exp2f(peak[h] - most);
      peak[h] = most;
      total[h] *= shrink;
      for (int i = 0; i < PART; i++) sum[h][i] *= shrink;
      for (int a = 0; a < AHEAD; a++) {
        const float share = exp2f(score[a] - most);
        total[h] += share;
        for (int i = 0; i < PART; i++) sum[h][i] += share * float(v[a].of[i]);
      }
    }
  }

  // The two groups of a warp, then the warps.
  __shared__ float peaks[WARPS][HEADS], totals[WARPS][HEADS], sums[WARPS][HEADS][D];
  __syncwarp();
  for (int h = 0; h < HEADS; h++) {
    const float most = fmaxf(peak[h], __shfl_xor_sync(0xffffffffu, peak[h], LANES));
    const float shrink = most == -INFINITY ? 0 : exp2f(peak[h] - most);
    total[h] *= shrink;
    total[h] += __shfl_xor_sync(0xffffffffu, total[h], LANES);
    for (int i = 0; i < PART; i++) {
      sum[h][i] *= shrink;
      sum[h][i] += __shfl_xor_sync(0xffffffffu, sum[h][i], LANES);
    }
    if (group % 2 == 0) {
      for (int i = 0; i < PART; i++) sums[warp][h][lane * PART + i] = sum[h][i];
      if (lane == 0) {
        peaks[warp][h] = most;
        totals[warp][h] = total[h];
      }
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < HEADS * D; at += THREADS) {
    const int h = at / D, i = at % D;
    float most = -INFINITY, all = 0, made = 0;
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, peaks[w][h]);
    for (int w = 0; w < WARPS; w++) {
      const float share = exp2f(peaks[w][h] - most);
      all += share * totals[w][h];
      made += share * sums[w][h][i];
    }
    out[(int64_t(row) * gridDim.x * SHARED + head + h) * D + i] = T(made / all);
  }
}
