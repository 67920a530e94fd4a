// Sums of zonal series over pairs of posteriors, and the coefficients of such series.
//
// The recurrence G_(l+1) = (1 + r_l) c G_l - r_l G_(l-1), r_l = l / (l + D - 2), is linear: it runs in registers over a
// tile of columns, and a start of 0 instead of 1 leaves a pair out. See aureole.sphere._zonal for the formulas.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace {

template <typename T> struct Simd;
template <> struct Simd<float> {
    typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));
    typedef int32_t Bits __attribute__((vector_size(64)));
    typedef double Wide __attribute__((vector_size(128), aligned(8), may_alias));
    static constexpr int32_t positive = 0x7fffffff;
};
template <> struct Simd<double> {
    typedef double Vector __attribute__((vector_size(64), aligned(8), may_alias));
    typedef int64_t Bits __attribute__((vector_size(64)));
    typedef double Wide __attribute__((vector_size(64), aligned(8), may_alias));
    static constexpr int64_t positive = 0x7fffffffffffffff;
};

constexpr int GROUP = 4;   // vectors of a tile, which stay in registers
constexpr int TILES = 8;   // tiles of a row between two transfers of the running sums to float64
constexpr int64_t MAX_TERMS = 4096;

template <typename T> constexpr int lanes = 64 / sizeof(T);
template <typename T> constexpr int tile = GROUP * lanes<T>;

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
        uint8_t any = 0;
        for (int64_t j = 0; j < last; j++) any |= excluded[j];
        if (any)
            for (int64_t j = 0; j < last; j++) one[j] = excluded[j] ? T(0) : T(1);
    }
    std::memcpy(c, values, sizeof(values));
    std::memcpy(counts, one, sizeof(one));
}

template <typename T> INLINE typename Simd<T>::Vector size_of(typename Simd<T>::Vector x) {
    return (typename Simd<T>::Vector)((typename Simd<T>::Bits)x & Simd<T>::positive);
}

INLINE double total_of(const double* x, int count) {
    double total = 0;
    for (int k = 0; k < count; k++) total += x[k];
    return total;
}

// The coefficients of the columns as [tiles, terms, tile], padded with zeros.
template <typename T> void pack(const T* right, int64_t m, int64_t terms, std::vector<T>& packed) {
    constexpr int n = tile<T>;
    const int64_t tiles = (m + n - 1) / n;
    packed.assign(size_t(tiles) * terms * n, T(0));
    for (int64_t j = 0; j < m; j++)
        for (int64_t l = 0; l < terms; l++) packed[((j / n) * terms + l) * n + j % n] = right[j * terms + l];
}

template <typename T>
INLINE void forward(const T* cosine, const T* left, const T* packed, const uint8_t* excluded, int64_t n, int64_t m,
                    int64_t terms, const Recurrence<T>& recurrence, double* moments, double* sizes) {
    using V = typename Simd<T>::Vector;
    using W = typename Simd<T>::Wide;
    constexpr int step = tile<T>;
    std::vector<T> sums(terms * lanes<T>);
    std::vector<double> wide(terms * lanes<T>);
    V* sum = (V*)sums.data();
    W* total = (W*)wide.data();
    const int64_t tiles = (m + step - 1) / step;
    for (int64_t i = 0; i < n; i++) {
        const T* own = left + i * terms;
        W total_size{};
        for (int64_t l = 0; l < terms; l++) total[l] = W{};
        for (int64_t first = 0; first < tiles; first += TILES) {
            V size{};
            for (int64_t l = 0; l < terms; l++) sum[l] = V{};
            const int64_t last = std::min<int64_t>(tiles, first + TILES);
            for (int64_t t = first; t < last; t++) {
                const int64_t at = t * step;
                V c[GROUP], now[GROUP], before[GROUP];
                load<T>(cosine + i * m + at, excluded ? excluded + i * m + at : nullptr, m - at, c, now);
                for (int g = 0; g < GROUP; g++) before[g] = V{};
                const T* row = packed + t * terms * step;
                for (int64_t l = 0; l < terms; l++, row += step) {
                    const T x = recurrence.twice[l], y = recurrence.last[l];
                    V part{}, absolute{};
                    for (int g = 0; g < GROUP; g++) {
                        V coefficient = *(const V*)(row + g * lanes<T>);
                        part += coefficient * now[g];
                        absolute += coefficient * size_of<T>(now[g]);
                        V next = (x * c[g]) * now[g] - y * before[g];
                        before[g] = now[g];
                        now[g] = next;
                    }
                    sum[l] += part;
                    size += own[l] * absolute;
                }
            }
            for (int64_t l = 0; l < terms; l++) total[l] += __builtin_convertvector(sum[l], W);
            total_size += __builtin_convertvector(size, W);
        }
        for (int64_t l = 0; l < terms; l++) moments[i * terms + l] = total_of(wide.data() + l * lanes<T>, lanes<T>);
        sizes[i] = total_of((const double*)&total_size, lanes<T>);
    }
}

// own holds the rows' coefficients times their gradients, own_slope these times the factors of the derivatives.
template <typename T>
INLINE void backward(const T* cosine, const T* own, const T* own_slope, const T* packed, const uint8_t* excluded,
                     int64_t n, int64_t m, int64_t terms, int64_t start, const Recurrence<T>& recurrence,
                     const Recurrence<T>& slopes, T* grad_cosine, T* grad_right) {
    using V = typename Simd<T>::Vector;
    constexpr int step = tile<T>;
    std::vector<T> columns(terms * step, T(0));
    for (int64_t i = 0; i < n; i++) {
        const T *a = own + i * terms, *b = own_slope + i * terms;
        const int64_t at = i * m + start;
        V c[GROUP], now[GROUP], before[GROUP], slope[GROUP], slope_before[GROUP], into_c[GROUP];
        load<T>(cosine + at, excluded ? excluded + at : nullptr, m - start, c, now);
        V* target = (V*)columns.data();
        for (int g = 0; g < GROUP; g++) {  // the first term has no slope
            slope[g] = now[g];
            before[g] = slope_before[g] = into_c[g] = V{};
            target[g] += a[0] * now[g];
            V next = c[g] * now[g];
            before[g] = now[g];
            now[g] = next;
        }
        const T* row = packed + step;
        for (int64_t l = 1; l < terms; l++, row += step) {
            const T x = recurrence.twice[l], y = recurrence.last[l];
            const T u = slopes.twice[l - 1], v = slopes.last[l - 1];
            target += GROUP;
            for (int g = 0; g < GROUP; g++) {
                V coefficient = *(const V*)(row + g * lanes<T>);
                target[g] += a[l] * now[g];
                into_c[g] += (b[l] * coefficient) * slope[g];
                V next = (x * c[g]) * now[g] - y * before[g];
                before[g] = now[g];
                now[g] = next;
                V slope_next = (u * c[g]) * slope[g] - v * slope_before[g];
                slope_before[g] = slope[g];
                slope[g] = slope_next;
            }
        }
        if (start + step <= m)
            std::memcpy(grad_cosine + at, into_c, sizeof(into_c));
        else
            std::memcpy(grad_cosine + at, into_c, sizeof(T) * (m - start));
    }
    for (int64_t j = 0; j < step && start + j < m; j++)
        for (int64_t l = 0; l < terms; l++) grad_right[(start + j) * terms + l] = columns[l * step + j];
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
        const T* c, const T* a, const T* s, const T* b, const uint8_t* x, int64_t n, int64_t m, int64_t terms,      \
        int64_t start, const Recurrence<T>& r, const Recurrence<T>& d, T* gc, T* gb) {                              \
        backward<T>(c, a, s, b, x, n, m, terms, start, r, d, gc, gb);                                               \
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

// Subnormal numbers count as 0 while this lives: they are a hundred times slower, and below what a sum can show.
struct FlushSubnormals {
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    FlushSubnormals() { _mm_setcsr(before | 0x8040); }
    ~FlushSubnormals() { _mm_setcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;
    FlushSubnormals() {
        asm volatile("mrs %0, fpcr" : "=r"(before));
        asm volatile("msr fpcr, %0" ::"r"(before | (uint64_t(1) << 24)));
    }
    ~FlushSubnormals() { asm volatile("msr fpcr, %0" ::"r"(before)); }
#endif
};

bool refused(int64_t n, int64_t m, int64_t terms, int64_t dim) {
    return n < 0 || m < 0 || terms < 1 || terms > MAX_TERMS || dim < 2;
}

template <typename T>
int rows(const T* cosine, const T* left, const T* right, const uint8_t* excluded, int64_t n, int64_t m, int64_t terms,
         int64_t dim, int threads, double* moments, double* sizes) {
    if (refused(n, m, terms, dim)) return 1;
    const Recurrence<T> recurrence(dim, terms);
    const Kernels<T> kernels = best<T>();
    std::vector<T> packed;
    pack<T>(right, m, terms, packed);
    const int64_t share = std::max<int64_t>(16, (n + 4 * threads - 1) / (4 * threads));
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < n; i += share) {
        FlushSubnormals flush;
        kernels.forward(cosine + i * m, left + i * terms, packed.data(), excluded ? excluded + i * m : nullptr,
                        std::min(share, n - i), m, terms, recurrence, moments + i * terms, sizes + i);
    }
    return 0;
}

template <typename T>
int rows_backward(const T* cosine, const T* left, const T* right, const uint8_t* excluded, const T* grad, int64_t n,
                  int64_t m, int64_t terms, int64_t dim, int threads, T* grad_cosine, T* grad_right) {
    if (refused(n, m, terms, dim)) return 1;
    const Recurrence<T> recurrence(dim, terms), slopes(dim + 2, terms);
    const Kernels<T> kernels = best<T>();
    std::vector<T> packed, own(n * terms), own_slope(n * terms);
    pack<T>(right, m, terms, packed);
    for (int64_t l = 0; l < terms; l++) {
        const T factor = T(double(l) * double(l + dim - 2) / double(dim - 1));
        for (int64_t i = 0; i < n; i++) {
            own[i * terms + l] = grad[i] * left[i * terms + l];
            own_slope[i * terms + l] = own[i * terms + l] * factor;
        }
    }
    constexpr int step = tile<T>;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t start = 0; start < m; start += step) {
        FlushSubnormals flush;
        kernels.backward(cosine, own.data(), own_slope.data(), packed.data() + start * terms, excluded, n, m, terms,
                         start, recurrence, slopes, grad_cosine, grad_right);
    }
    return 0;
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))
extern "C" {

EXPORT int aureole_abi() { return 2; }

EXPORT const char* aureole_instructions() {
    constexpr const char* names[] = {"baseline", "AVX2", "AVX-512"};
    return names[level()];
}

EXPORT int aureole_rows_f32(const float* c, const float* a, const float* b, const uint8_t* x, int64_t n, int64_t m,
                            int64_t t, int64_t dim, int threads, double* moments, double* sizes) {
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
EXPORT int aureole_rows_backward_f64(const double* c, const double* a, const double* b, const uint8_t* x,
                                     const double* g, int64_t n, int64_t m, int64_t t, int64_t dim, int threads,
                                     double* gc, double* gb) {
    return rows_backward<double>(c, a, b, x, g, n, m, t, dim, threads, gc, gb);
}

// The logs of A_l(k) = r_v(k) ... r_(v+l-1)(k) and their derivatives in k, for l < count: r_v = k rho_v from the rho and
// the slope r' of the order v + steps, by the recurrences downward. An infinite k has A_l = 1.
EXPORT int aureole_log_ratios(const double* kappa, const double* top_rho, const double* top_slope, int64_t n,
                              double order, int64_t steps, int64_t count, double* logs, double* slopes) {
    if (n < 0 || count < 1 || count > 16 * MAX_TERMS || steps < count - 1) return 1;
    std::vector<double> log_step(count), slope_step(count);
    for (int64_t i = 0; i < n; i++) {
        const double k = kappa[i];
        double *log_row = logs + i * count, *slope_row = slopes + i * count;
        if (std::isinf(k)) {
            std::fill(log_row, log_row + count, 0.0);
            std::fill(slope_row, slope_row + count, 0.0);
            continue;
        }
        double rho = top_rho[i], slope = top_slope[i];
        if (steps < count) {
            log_step[steps] = std::log(k * rho);
            slope_step[steps] = slope / (k * rho);
        }
        for (int64_t l = steps - 1; l >= 0; l--) {
            const double twice = 2 * (order + double(l) + 1);
            rho = 1 / (k * (k * rho) + twice);
            const double r = k * rho;
            slope = rho * rho * twice - r * r * slope;
            if (l < count) {
                log_step[l] = std::log(r);
                slope_step[l] = slope / r;
            }
        }
        double log_sum = 0, slope_sum = 0;
        for (int64_t l = 0; l < count; l++) {
            log_row[l] = log_sum;
            slope_row[l] = slope_sum;
            log_sum += log_step[l];
            slope_sum += slope_step[l];
        }
    }
    return 0;
}

// The terms exp(log_l - scale) G_l(c) of one series per item, scale the largest log, their sums, the sums of their
// sizes and of their derivatives in c.
EXPORT int aureole_series(const double* cosine, const double* logs, int64_t n, int64_t terms, int64_t dim, double* parts,
                          double* total, double* sizes, double* slopes, double* scales) {
    if (refused(n, 0, std::min(terms, MAX_TERMS), dim) || terms < 1) return 1;
    const Recurrence<double> recurrence(dim, terms), derived(dim + 2, terms);
    for (int64_t i = 0; i < n; i++) {
        const double *row = logs + i * terms, c = cosine[i];
        const double scale = *std::max_element(row, row + terms);
        double before = 0, now = 1, slope_before = 0, slope = 1, sum = 0, size = 0, into_c = 0;
        for (int64_t l = 0; l < terms; l++) {
            const double term = std::exp(row[l] - scale), part = term * now;
            parts[i * terms + l] = part;
            sum += part;
            size += std::abs(part);
            double next = recurrence.twice[l] * c * now - recurrence.last[l] * before;
            before = now;
            now = next;
            if (l == 0) continue;
            into_c += term * (double(l) * double(l + dim - 2) / double(dim - 1)) * slope;
            next = derived.twice[l - 1] * c * slope - derived.last[l - 1] * slope_before;
            slope_before = slope;
            slope = next;
        }
        total[i] = sum;
        sizes[i] = size;
        slopes[i] = into_c;
        scales[i] = scale;
    }
    return 0;
}
}
