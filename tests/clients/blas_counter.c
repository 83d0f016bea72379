/* Count the floating-point operations that a process asks of a bundled OpenBLAS.
 *
 *     cc -O2 -shared -fPIC -o blas_counter.so blas_counter.c -ldl
 *     LD_PRELOAD=./blas_counter.so python ...
 *
 * The functions below have the names of those in the OpenBLAS of the wheels of NumPy
 * and SciPy, so that the loader binds NumPy and SciPy to them.  Each adds its
 * operations to a table and goes on to the real function.  OpenBLAS binds the calls
 * that its own LAPACK makes to itself, where no preloading reaches them: for LAPACK the
 * call from outside is counted, with a textbook estimate of its operations.
 *
 * From Python, by ctypes: blas_count_read, blas_count_reset, and blas_count_pause,
 * which stops (+1) and restarts (-1) counting.  Not exact under several threads.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    int lapack;
    int64_t calls;
    double flops;
    char caller[48];
} entry;

enum { SLOTS = 512 };
static entry table[SLOTS];
static int paused;

void blas_count_pause(int step) { paused += step; }

void blas_count_reset(void) { memset(table, 0, sizeof table); }

/* The i-th line of the table, or 0 where it ends. */
int blas_count_read(int i, const char **name, const char **caller, int *lapack,
                    int64_t *calls, double *flops)
{
    if (i >= SLOTS || table[i].name == NULL)
        return 0;
    *name = table[i].name;
    *caller = table[i].caller;
    *lapack = table[i].lapack;
    *calls = table[i].calls;
    *flops = table[i].flops;
    return 1;
}

static void count(const char *name, int lapack, void *from, double flops)
{
    Dl_info where;
    const char *file = "?";
    if (paused || flops <= 0.0) /* zero: a question for the size of a workspace */
        return;
    if (dladdr(from, &where) && where.dli_fname != NULL) {
        const char *slash = strrchr(where.dli_fname, '/');
        file = slash != NULL ? slash + 1 : where.dli_fname;
    }
    if (strstr(file, "openblas") != NULL)
        return; /* part of a call that was counted */
    for (int i = 0; i < SLOTS; i++) {
        entry *e = &table[i];
        if (e->name == NULL) {
            e->name = name;
            e->lapack = lapack;
            snprintf(e->caller, sizeof e->caller, "%s", file);
        }
        if (e->name == name
            && strncmp(e->caller, file, sizeof e->caller - 1) == 0) {
            e->calls++;
            e->flops += flops;
            return;
        }
    }
}

/* ---- The real functions: in the loaded library of that kind, whatever its hash ---- */

typedef struct {
    const char *part;
    const char *symbol;
    void *found;
} wanted;

static int look_in(struct dl_phdr_info *info, size_t size, void *data)
{
    wanted *w = data;
    (void)size;
    if (strstr(info->dlpi_name, w->part) != NULL) {
        void *library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL)
            w->found = dlsym(library, w->symbol);
    }
    return w->found != NULL;
}

static void *real(const char *symbol)
{
    int ilp64 = strstr(symbol, "64_") != NULL;
    wanted w = {ilp64 ? "libscipy_openblas64_" : "libscipy_openblas-", symbol, NULL};
    dl_iterate_phdr(look_in, &w);
    if (w.found == NULL) {
        fprintf(stderr, "blas_counter: no %s in a library %s*\n", symbol, w.part);
        abort();
    }
    return w.found;
}

#define CALLER __builtin_return_address(0)

/* ---- CBLAS with 64-bit integers, which NumPy calls ----
 * dsyrk counts as the full product that NumPy was asked for: A @ A.T. */

typedef int64_t I;
typedef const void *P;

#define CBLAS(name, flops, parameters, arguments)                                 \
    void scipy_cblas_##name##64_ parameters                                       \
    {                                                                             \
        static void(*next) parameters;                                            \
        if (next == NULL)                                                         \
            next = (void(*) parameters)real("scipy_cblas_" #name "64_");          \
        count("numpy " #name, 0, CALLER, flops);                                     \
        next arguments;                                                           \
    }

#define CBLAS_GEMM(type, scalar, scale)                                           \
    CBLAS(type##gemm, scale * m * n * k,                                          \
          (int o, int ta, int tb, I m, I n, I k, scalar alpha, P a, I lda, P b,   \
           I ldb, scalar beta, void *c, I ldc),                                   \
          (o, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))
#define CBLAS_GEMV(type, scalar, scale)                                           \
    CBLAS(type##gemv, scale * m * n,                                              \
          (int o, int t, I m, I n, scalar alpha, P a, I lda, P x, I incx,         \
           scalar beta, void *y, I incy),                                         \
          (o, t, m, n, alpha, a, lda, x, incx, beta, y, incy))
#define CBLAS_SYRK(type, scalar, scale)                                           \
    CBLAS(type##syrk, scale * n * n * k,                                          \
          (int o, int u, int t, I n, I k, scalar alpha, P a, I lda, scalar beta,  \
           void *c, I ldc),                                                       \
          (o, u, t, n, k, alpha, a, lda, beta, c, ldc))

CBLAS_GEMM(s, float, 2.0)
CBLAS_GEMM(d, double, 2.0)
CBLAS_GEMM(z, P, 8.0)
CBLAS_GEMV(s, float, 2.0)
CBLAS_GEMV(d, double, 2.0)
CBLAS_GEMV(z, P, 8.0)
CBLAS_SYRK(s, float, 2.0)
CBLAS_SYRK(d, double, 2.0)
CBLAS_SYRK(z, P, 8.0)

double scipy_cblas_ddot64_(I n, const double *x, I incx, const double *y, I incy)
{
    static double (*next)(I, const double *, I, const double *, I);
    if (next == NULL)
        next = (double (*)(I, const double *, I, const double *, I))real(
            "scipy_cblas_ddot64_");
    count("numpy ddot", 0, CALLER, 2.0 * n);
    return next(n, x, incx, y, incy);
}

/* ---- Fortran, which SciPy and LAPACK call ----
 * Every argument is one word, also the hidden lengths of strings; 24 words are enough
 * for all of them, and words too many do no harm to a C calling convention where the
 * caller removes them. */

#define WORDS                                                                     \
    P p0, P p1, P p2, P p3, P p4, P p5, P p6, P p7, P p8, P p9, P p10, P p11,     \
        P p12, P p13, P p14, P p15, P p16, P p17, P p18, P p19, P p20, P p21,     \
        P p22, P p23
#define ALL                                                                       \
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15, p16,    \
        p17, p18, p19, p20, p21, p22, p23
#define D(i) ((double)*(const INT *)p##i)
#define C(i) (*(const char *)p##i | 32)
#define ORDER (C(0) == 'l')

#define FORTRAN_AS(symbol, label, lapack, flops)                                  \
    void symbol(WORDS)                                                            \
    {                                                                             \
        static void (*next)(WORDS);                                               \
        if (next == NULL)                                                         \
            next = (void (*)(WORDS))real(#symbol);                                \
        count(label, lapack, CALLER, flops);                                      \
        next(ALL);                                                                \
    }
#define LP64(name, lapack, flops)                                                 \
    FORTRAN_AS(scipy_##name##_, "scipy " #name, lapack, flops)
#define ILP64(name, lapack, flops)                                                \
    FORTRAN_AS(scipy_##name##_64_, "numpy " #name, lapack, flops)

/* LAPACK: the conventional counts for factorisations; for eigenvalues and singular
 * values, which iterate, those of Golub and Van Loan.  A call with LWORK = -1 computes
 * nothing. */
#define CUBE(x) ((x) * (x) * (x))
#define ASKS(i) (*(const INT *)p##i == -1)
#define LONG(i, j) (D(i) > D(j) ? D(i) : D(j))
#define SHORT(i, j) (D(i) > D(j) ? D(j) : D(i))
#define LU(i, j) (LONG(i, j) * SHORT(i, j) * SHORT(i, j) - CUBE(SHORT(i, j)) / 3.0)
#define QR(i, j) (2.0 * LU(i, j))
#define SVD(i, j) (6.0 * LONG(i, j) * SHORT(i, j) * SHORT(i, j) + 20.0 * CUBE(SHORT(i, j)))

#define EVERY(ROUTINE)                                                            \
    ROUTINE(dgemm, 0, 2.0 * D(2) * D(3) * D(4))                                   \
    ROUTINE(sgemm, 0, 2.0 * D(2) * D(3) * D(4))                                   \
    ROUTINE(zgemm, 0, 8.0 * D(2) * D(3) * D(4))                                   \
    ROUTINE(dgemv, 0, 2.0 * D(1) * D(2))                                          \
    ROUTINE(dsymm, 0, 2.0 * D(2) * D(3) * (ORDER ? D(2) : D(3)))                  \
    ROUTINE(dsyrk, 0, D(2) * (D(2) + 1) * D(3))                                   \
    ROUTINE(dsyr2k, 0, 2.0 * D(2) * (D(2) + 1) * D(3))                            \
    ROUTINE(dtrmm, 0, D(4) * D(5) * (ORDER ? D(4) : D(5)))                        \
    ROUTINE(dtrsm, 0, D(4) * D(5) * (ORDER ? D(4) : D(5)))                        \
    ROUTINE(dpotrf, 1, CUBE(D(1)) / 3.0)                                          \
    ROUTINE(dgetrf, 1, LU(0, 1))                                                  \
    ROUTINE(dgesv, 1, 2.0 / 3.0 * CUBE(D(0)) + 2.0 * D(0) * D(0) * D(1))          \
    ROUTINE(dtrtrs, 1, D(3) * D(3) * D(4))                                        \
    ROUTINE(dgeqrf, 1, ASKS(6) ? 0.0 : QR(0, 1))                                  \
    ROUTINE(dorgqr, 1, ASKS(7) ? 0.0 : QR(1, 0))                                  \
    ROUTINE(dgelsd, 1, ASKS(11) ? 0.0 : SVD(0, 1))                                \
    ROUTINE(dgesdd, 1, ASKS(11) ? 0.0 : SVD(1, 2))                                \
    ROUTINE(dgeev, 1, ASKS(12) ? 0.0 : 25.0 * CUBE(D(2)))                         \
    ROUTINE(dsyevd, 1, ASKS(7) ? 0.0 : (C(0) == 'v' ? 9.0 : 4.0 / 3.0) * CUBE(D(2))) \
    ROUTINE(dsyevr, 1, ASKS(17) ? 0.0 : 9.0 * CUBE(D(3)))                         \
    ROUTINE(dsygvd, 1, ASKS(10) ? 0.0 : 12.0 * CUBE(D(3)))

#define INT int32_t
EVERY(LP64)
#undef INT
#define INT int64_t
EVERY(ILP64)
