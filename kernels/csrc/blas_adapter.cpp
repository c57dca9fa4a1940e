// The matrix products that mlx calls (cblas with sizes of 32 bits), done by an OpenBLAS whose sizes have 64 bits: the one in NumPy's wheel.
//
// Opened globally before mlx, this library is where mlx finds the three functions. `adapt` comes before any of them is called.

#include <cstdint>

namespace {

using Size = int64_t;
template <typename Scale, typename Number>
using Gemm = void (*)(int, int, int, Size, Size, Size, Scale, const Number*, Size, const Number*, Size, Scale, Number*, Size);

Gemm<float, float> of_floats;
Gemm<double, double> of_doubles;
Gemm<const void*, void> of_complexes;

}  // namespace

extern "C" {

void adapt(void* sgemm, void* dgemm, void* cgemm) {
  of_floats = (Gemm<float, float>)sgemm;
  of_doubles = (Gemm<double, double>)dgemm;
  of_complexes = (Gemm<const void*, void>)cgemm;
}

// c [m, n] = alpha a b + beta c; `order`, `turn_a` and `turn_b` are cblas's numbers, lda, ldb and ldc the distances between rows.
void cblas_sgemm(int order, int turn_a, int turn_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b, int ldb,
                 float beta, float* c, int ldc) {
  of_floats(order, turn_a, turn_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_dgemm(int order, int turn_a, int turn_b, int m, int n, int k, double alpha, const double* a, int lda, const double* b, int ldb,
                 double beta, double* c, int ldc) {
  of_doubles(order, turn_a, turn_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_cgemm(int order, int turn_a, int turn_b, int m, int n, int k, const void* alpha, const void* a, int lda, const void* b, int ldb,
                 const void* beta, void* c, int ldc) {
  of_complexes(order, turn_a, turn_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
}
