// Row sums of zonal series, sum_j sum_l a_il b_jl G_l(c_ij), and their gradients, with the recurrence in registers.
//
// G_l are the Gegenbauer polynomials with G_l(1) = 1 in dimension D:
//   G_{l+1} = (1 + r_l) c G_l - r_l G_{l-1},  r_l = l / (l + D - 2),
// and G_l' = l (l + D - 2) / (D - 1) times G_{l-1} of dimension D + 2. The recurrences are linear, so starting one from
// 0 instead of 1 leaves a pair out.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define INLINE inline __attribute__((always_inline))

namespace {

template <typename T> struct Simd;
template <> struct Simd<float> {
    typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));
    typedef int32_t Bits __attribute__((vector_size(64)));
    static constexpr int32_t positive = 0x7fffffff;
};
template <> struct Simd<double> {
    typedef double Vector __attribute__((vector_size(64), aligned(8), may_alias));
    typedef int64_t Bits __attribute__((vector_size(64)));
    static constexpr int64_t positive = 0x7fffffffffffffff;
};

constexpr int GROUP = 2;    // vectors of a tile, which stay in registers
constexpr int TILES = 4;    // tiles of a block of columns, whose coefficients stay in the first cache
constexpr int MAX_TERMS = 4096;

template <typename T> constexpr int lanes = 64 / sizeof(T);
template <typename T> constexpr int tile = GROUP * lanes<T>;
template <typename T> constexpr int block = TILES * tile<T>;

template <typename T> struct Recurrence {
    std::vector<T> twice, last;  // 1 + r_l and r_l
    Recurrence(int64_t dim, int64_t terms) : twice(terms + 1), last(terms + 1) {
        for (int64_t l = 0; l <= terms; l++) {
            double r = l == 0 ? 0.0 : double(l) / double(l + dim - 2);
            twice[l] = T(1 + r);
            last[l] = T(r);
        }
    }
};

// A tile of a row: the cosines, and 1 for the pairs that count, 0 for those that do not or are beyond the last column.
template <typename T>
INLINE void load(const T* cosine, const uint8_t* excluded, int64_t count, typename Simd<T>::Vector* c,
                 typename Simd<T>::Vector* counts) {
    constexpr int n = tile<T>;
    alignas(64) T values[n], one[n];
    if (count >= n) {
        std::memcpy(values, cosine, sizeof(values));
        for (int j = 0; j < n; j++) one[j] = T(1);
    } else {
        for (int j = 0; j < n; j++) values[j] = j < count ? cosine[j] : T(0);
        for (int j = 0; j < n; j++) one[j] = j < count ? T(1) : T(0);
    }
    if (excluded != nullptr) {
        const int64_t last = std::min<int64_t>(count, n);
        for (int64_t j = 0; j < last; j++) one[j] = excluded[j] ? T(0) : T(1);
    }
    std::memcpy(c, values, sizeof(values));
    std::memcpy(counts, one, sizeof(one));
}

template <typename T> INLINE typename Simd<T>::Vector size_of(typename Simd<T>::Vector x) {
    return (typename Simd<T>::Vector)((typename Simd<T>::Bits)x & Simd<T>::positive);
}

template <typename T> INLINE double total_of(typename Simd<T>::Vector x) {
    double total = 0;
    for (int k = 0; k < lanes<T>; k++) total += double(x[k]);
    return total;
}

// right has the coefficients of the columns as [blocks, terms, block], padded with zeros.
template <typename T>
INLINE void pack(const T* right, int64_t m, int64_t terms, std::vector<T>& packed) {
    constexpr int n = block<T>;
    const int64_t blocks = (m + n - 1) / n;
    packed.assign(size_t(blocks) * terms * n, T(0));
    for (int64_t j = 0; j < m; j++)
        for (int64_t l = 0; l < terms; l++) packed[((j / n) * terms + l) * n + j % n] = right[j * terms + l];
}

template <typename T>
INLINE void forward(const T* cosine, const T* left, const T* packed, const uint8_t* excluded, int64_t n, int64_t m,
                    int64_t terms, const Recurrence<T>& recurrence, double* moments, double* sizes) {
    using V = typename Simd<T>::Vector;
    constexpr int width = block<T>, step = tile<T>;
    std::vector<T> sums(2 * terms * lanes<T>);
    V* sum = (V*)sums.data();
    V* size = sum + terms;
    for (int64_t start = 0, b = 0; start < m; start += width, b++) {
        const T* coefficients = packed + b * terms * width;
        for (int64_t i = 0; i < n; i++) {
            for (int64_t l = 0; l < terms; l++) sum[l] = size[l] = V{};
            for (int t = 0; t < TILES && start + t * step < m; t++) {
                const int64_t at = start + t * step;
                V c[GROUP], now[GROUP], before[GROUP];
                load<T>(cosine + i * m + at, excluded ? excluded + i * m + at : nullptr, m - at, c, now);
                for (int g = 0; g < GROUP; g++) before[g] = V{};
                for (int64_t l = 0; l < terms; l++) {
                    const T* row = coefficients + l * width + t * step;
                    const T x = recurrence.twice[l], y = recurrence.last[l];
                    V signed_sum{}, absolute{};
                    for (int g = 0; g < GROUP; g++) {
                        V coefficient = *(const V*)(row + g * lanes<T>);
                        signed_sum += coefficient * now[g];
                        absolute += coefficient * size_of<T>(now[g]);
                        V next = (x * c[g]) * now[g] - y * before[g];
                        before[g] = now[g];
                        now[g] = next;
                    }
                    sum[l] += signed_sum;
                    size[l] += absolute;
                }
            }
            double total_size = 0;
            for (int64_t l = 0; l < terms; l++) {
                moments[i * terms + l] += total_of<T>(sum[l]);
                total_size += std::abs(double(left[i * terms + l])) * total_of<T>(size[l]);
            }
            sizes[i] += total_size;
        }
    }
}

template <typename T>
INLINE void backward(const T* cosine, const T* left, const T* packed, const uint8_t* excluded, const T* grad, int64_t n,
                     int64_t m, int64_t terms, int64_t start, const Recurrence<T>& recurrence,
                     const Recurrence<T>& slopes, const T* factors, T* grad_cosine, T* grad_right) {
    using V = typename Simd<T>::Vector;
    constexpr int width = block<T>, step = tile<T>;
    std::vector<T> columns(terms * width, T(0));
    V* into = (V*)columns.data();
    std::vector<T> own(terms), own_slope(terms);
    for (int64_t i = 0; i < n; i++) {
        const T g_i = grad[i];
        for (int64_t l = 0; l < terms; l++) {
            own[l] = g_i * left[i * terms + l];
            own_slope[l] = own[l] * factors[l];
        }
        for (int t = 0; t < TILES && start + t * step < m; t++) {
            const int64_t at = start + t * step;
            V c[GROUP], now[GROUP], before[GROUP], slope[GROUP], slope_before[GROUP], into_c[GROUP];
            load<T>(cosine + i * m + at, excluded ? excluded + i * m + at : nullptr, m - at, c, now);
            for (int g = 0; g < GROUP; g++) {
                slope[g] = now[g];
                before[g] = slope_before[g] = into_c[g] = V{};
            }
            V* target = into + t * GROUP;
            for (int g = 0; g < GROUP; g++) {  // the first term has no slope
                target[g] += own[0] * now[g];
                V next = c[g] * now[g];
                before[g] = now[g];
                now[g] = next;
            }
            for (int64_t l = 1; l < terms; l++) {
                const T* row = packed + l * width + t * step;
                const T x = recurrence.twice[l], y = recurrence.last[l];
                const T u = slopes.twice[l - 1], v = slopes.last[l - 1];
                for (int g = 0; g < GROUP; g++) {
                    V coefficient = *(const V*)(row + g * lanes<T>);
                    target[l * TILES * GROUP + g] += own[l] * now[g];
                    into_c[g] += (own_slope[l] * coefficient) * slope[g];
                    V next = (x * c[g]) * now[g] - y * before[g];
                    before[g] = now[g];
                    now[g] = next;
                    V slope_next = (u * c[g]) * slope[g] - v * slope_before[g];
                    slope_before[g] = slope[g];
                    slope[g] = slope_next;
                }
            }
            alignas(64) T values[step];
            std::memcpy(values, into_c, sizeof(values));
            std::memcpy(grad_cosine + i * m + at, values, sizeof(T) * std::min<int64_t>(step, m - at));
        }
    }
    for (int64_t l = 0; l < terms; l++) {
        const T* values = columns.data() + l * width;
        for (int64_t j = 0; j < width && start + j < m; j++) grad_right[(start + j) * terms + l] = values[j];
    }
}

// The same code compiled for three kinds of processor; the best that this one can run is selected at run time.
template <typename T> struct Kernels {
    decltype(&forward<T>) forward;
    decltype(&backward<T>) backward;
};

#define KERNELS(NAME, TARGET)                                                                                       \
    template <typename T> TARGET void NAME##_forward(                                                               \
        const T* c, const T* a, const T* b, const uint8_t* x, int64_t n, int64_t m, int64_t terms,                  \
        const Recurrence<T>& r, double* moments, double* sizes) {                                                   \
        forward<T>(c, a, b, x, n, m, terms, r, moments, sizes);                                                     \
    }                                                                                                               \
    template <typename T> TARGET void NAME##_backward(                                                              \
        const T* c, const T* a, const T* b, const uint8_t* x, const T* g, int64_t n, int64_t m, int64_t terms,      \
        int64_t start, const Recurrence<T>& r, const Recurrence<T>& s, const T* factors, T* gc, T* gb) {            \
        backward<T>(c, a, b, x, g, n, m, terms, start, r, s, factors, gc, gb);                                      \
    }

KERNELS(plain, )
#if defined(__x86_64__)
KERNELS(avx2, __attribute__((target("avx2,fma"))))
KERNELS(avx512, __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))))
#endif

int level() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

template <typename T> Kernels<T> best() {
#if defined(__x86_64__)
    if (level() == 2) return {avx512_forward<T>, avx512_backward<T>};
    if (level() == 1) return {avx2_forward<T>, avx2_backward<T>};
#endif
    return {plain_forward<T>, plain_backward<T>};
}

template <typename T>
int rows(const T* cosine, const T* left, const T* right, const uint8_t* excluded, int64_t n, int64_t m, int64_t terms,
         int64_t dim, int threads, double* moments, double* sizes) {
    if (n < 0 || m < 0 || terms < 1 || terms > MAX_TERMS || dim < 2) return 1;
    const Recurrence<T> recurrence(dim, terms);
    std::vector<T> packed;
    pack<T>(right, m, terms, packed);
    std::fill(moments, moments + n * terms, 0.0);
    std::fill(sizes, sizes + n, 0.0);
    const int64_t share = std::max<int64_t>(16, (n + 4 * threads - 1) / (4 * threads));
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < n; i += share)
        best<T>().forward(cosine + i * m, left + i * terms, packed.data(), excluded ? excluded + i * m : nullptr,
                    std::min(share, n - i), m, terms, recurrence, moments + i * terms, sizes + i);
    return 0;
}

template <typename T>
int rows_backward(const T* cosine, const T* left, const T* right, const uint8_t* excluded, const T* grad, int64_t n,
                  int64_t m, int64_t terms, int64_t dim, int threads, T* grad_cosine, T* grad_right) {
    if (n < 0 || m < 0 || terms < 1 || terms > MAX_TERMS || dim < 2) return 1;
    const Recurrence<T> recurrence(dim, terms), slopes(dim + 2, terms);
    std::vector<T> factors(terms), packed;
    for (int64_t l = 0; l < terms; l++) factors[l] = T(double(l) * double(l + dim - 2) / double(dim - 1));
    pack<T>(right, m, terms, packed);
    constexpr int width = block<T>;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t start = 0; start < m; start += width)
        best<T>().backward(cosine, left, packed.data() + (start / width) * terms * width, excluded, grad, n, m, terms, start,
                     recurrence, slopes, factors.data(), grad_cosine, grad_right);
    return 0;
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))
extern "C" {

EXPORT int aureole_abi() { return 1; }

EXPORT const char* aureole_instructions() {
    constexpr const char* names[] = {"baseline", "AVX2", "AVX-512"};
    return names[level()];
}

EXPORT int aureole_rows_f32(const float* c, const float* a, const float* b, const uint8_t* x, int64_t n, int64_t m, int64_t t,
                     int64_t dim, int threads, double* moments, double* sizes) {
    return rows<float>(c, a, b, x, n, m, t, dim, threads, moments, sizes);
}
EXPORT int aureole_rows_f64(const double* c, const double* a, const double* b, const uint8_t* x, int64_t n, int64_t m,
                     int64_t t, int64_t dim, int threads, double* moments, double* sizes) {
    return rows<double>(c, a, b, x, n, m, t, dim, threads, moments, sizes);
}
EXPORT int aureole_rows_backward_f32(const float* c, const float* a, const float* b, const uint8_t* x, const float* g,
                              int64_t n, int64_t m, int64_t t, int64_t dim, int threads, float* gc, float* gb) {
    return rows_backward<float>(c, a, b, x, g, n, m, t, dim, threads, gc, gb);
}
EXPORT int aureole_rows_backward_f64(const double* c, const double* a, const double* b, const uint8_t* x, const double* g,
                              int64_t n, int64_t m, int64_t t, int64_t dim, int threads, double* gc, double* gb) {
    return rows_backward<double>(c, a, b, x, g, n, m, t, dim, threads, gc, gb);
}

}
