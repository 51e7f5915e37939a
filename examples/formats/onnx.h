/* onnx.h - reads models in the ONNX format and builds them with the public functions of genie.h.

   One C file of the program:   #define ONNX_IMPLEMENTATION
                                #include "onnx.h"
   Elsewhere:                   #include "onnx.h"   C11; POSIX, little-endian; needs genie.h, mapping.h and onnx/.

       char error[ONNX_ERROR];
       onnx *m = onnx_open("model.onnx", error);
       onnx_session *s = onnx_session_open(m, g, stderr, error);      lists what it cannot do, before anything runs
       onnx_tensor x = { .type = ONNX_FLOAT, .rank = 2, .dims = { 1, 784 }, .data = pixels };
       onnx_bind(s, "input", &x, error);
       if (onnx_build(s, error)) onnx_result(s, 0, 0, &y, error);     y.data lives until the next build
       onnx_session_close(s);
       onnx_close(m);

   The reader maps the file and walks it once: wire types, lengths, nesting (128 levels), fields that stand twice,
   types, dimensions against the bytes that are there, places of external data. It allocates nothing that grows with
   the file: afterwards the model is read where it lies. An error names file, byte and node. So does one of the builder,
   which refuses what a node gives that its op has not, inputs and attributes, and texts that are not known.

   The builder runs a node when it comes to it. What depends on constants and shapes alone is computed at once on this
   CPU, in a context of its own, as long as a result has at most 64 MiB (constant folding). Where a node needs a number
   to be built that is computed from inputs (a shape, a condition, a count), that number is read at once: such reads are
   counted (onnx_counts). Loops are unrolled, functions inlined. Floats of 8 and 4 bits are held as f32, ints of 4 and 2
   bits as i8 or u8, u64 as i64; ops that would compute with them are refused, casts and what only moves them are not.

   A batch norm of initialisers behind a convolution becomes other weights of it, a sum its residual, Relu and Clip its
   bounds, where nothing else uses what they take; onnx_counts tells how many did.

   Versions: opset 7 to 28 (https://onnx.ai/onnx/operators, wire: https://protobuf.dev/programming-guides/encoding).
   Maps are those of ai.onnx.ml, from ints to floats; ZipMap makes them, CastMap and DictVectorizer tensors of them.
   Not there: strings, complex numbers, sparse tensors, maps as inputs, training information. */
#ifndef ONNX_H
#define ONNX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "genie.h"

enum { ONNX_ERROR = 768, ONNX_RANK = 8, ONNX_OPSET_OLDEST = 7, ONNX_OPSET_NEWEST = 28 };

/* Element types: X(NAME, number in the file, bits in the file, dtype that holds it here) */
#define ONNX_TYPES(X)                     \
    X(FLOAT, 1, 32, GN_F32)               \
    X(UINT8, 2, 8, GN_U8)                 \
    X(INT8, 3, 8, GN_I8)                  \
    X(UINT16, 4, 16, GN_U16)              \
    X(INT16, 5, 16, GN_I16)               \
    X(INT32, 6, 32, GN_I32)               \
    X(INT64, 7, 64, GN_I64)               \
    X(STRING, 8, 0, GN_DTYPE_NONE)        \
    X(BOOL, 9, 8, GN_BOOL)                \
    X(FLOAT16, 10, 16, GN_F16)            \
    X(DOUBLE, 11, 64, GN_F64)             \
    X(UINT32, 12, 32, GN_U32)             \
    X(UINT64, 13, 64, GN_U64)             \
    X(COMPLEX64, 14, 64, GN_DTYPE_NONE)   \
    X(COMPLEX128, 15, 128, GN_DTYPE_NONE) \
    X(BFLOAT16, 16, 16, GN_BF16)          \
    X(FLOAT8E4M3FN, 17, 8, GN_F32)        \
    X(FLOAT8E4M3FNUZ, 18, 8, GN_F32)      \
    X(FLOAT8E5M2, 19, 8, GN_F32)          \
    X(FLOAT8E5M2FNUZ, 20, 8, GN_F32)      \
    X(UINT4, 21, 4, GN_U8)                \
    X(INT4, 22, 4, GN_I8)                 \
    X(FLOAT4E2M1, 23, 4, GN_F32)          \
    X(FLOAT8E8M0, 24, 8, GN_F32)          \
    X(UINT2, 25, 2, GN_U8)                \
    X(INT2, 26, 2, GN_I8)

typedef enum onnx_type {
    ONNX__SIGNED = -1, /* an int, whatever the compiler */
    ONNX_UNDEFINED = 0,
#define ONNX__X(name, number, bits, dtype) ONNX_##name = number,
    ONNX_TYPES(ONNX__X) ONNX_TYPE__COUNT
#undef ONNX__X
} onnx_type;

/* Bytes of a message, a name or data, in the mapped file or in the caller's memory. */
typedef struct onnx_span {
    const uint8_t *at, *end;
} onnx_span;

/* A tensor's description and its bytes. Of the file: `data` where they lie as this machine has them, else NULL and
   onnx_decode unpacks. Of results and inputs: elements of the dtype that holds the type (ONNX_TYPES), row-major. */
typedef struct onnx_tensor {
    onnx_type type;
    int rank;
    int64_t dims[ONNX_RANK];
    uint64_t elements, bytes; /* bytes as held here: elements times the dtype's */
    const void *data;
    onnx_span name, packed; /* packed: what onnx_decode reads */
    int field;              /* number of the field that `packed` came from */
    onnx_span message;
} onnx_tensor;

typedef struct onnx onnx;

/* NULL: `error` says why. A model may be read by several threads at once. */
onnx *onnx_open(const char *path, char error[ONNX_ERROR]);
void onnx_close(onnx *m);
const char *onnx_type_name(int type); /* "FLOAT", "?" for none */
gn_dtype onnx_type_dtype(int type);   /* GN_DTYPE_NONE for those that are not held */
uint64_t onnx_type_bits(int type);    /* of an element in a file; 0: none of its own */
/* A TensorProto alone, from memory that outlives `out` (input_0.pb). */
bool onnx_parse_tensor(onnx_span bytes, onnx_tensor *out, char error[ONNX_ERROR]);
/* Unpacks all elements to `out`, tensor->bytes long. */
bool onnx_decode(const onnx_tensor *t, void *out, char error[ONNX_ERROR]);

/* ---- the wire format ---- */
typedef struct onnx_field {
    uint32_t number;
    uint32_t wire;     /* 0 varint, 1 eight bytes, 2 a length and bytes, 5 four bytes */
    uint64_t value;    /* of wire 0, 1 and 5 */
    onnx_span bytes;   /* of wire 2 */
    const uint8_t *at; /* where the field begins */
} onnx_field;
/* The next field of a message; false at its end and where it is not well formed (then s->at is before s->end). */
bool onnx_next(onnx_span *s, onnx_field *out);
/* A field by number, the first from *s on, which is moved behind it. */
bool onnx_find(onnx_span *s, uint32_t number, onnx_field *out);

#include "onnx/session.h"
#endif

#if defined(ONNX_IMPLEMENTATION) && !defined(ONNX_IMPLEMENTED)
#define ONNX_IMPLEMENTED
#define MAPPING_IMPLEMENTATION
#include "mapping.h"
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "onnx/reader.h"
#include "onnx/tensor.h"
#include "onnx/values.h"
#include "onnx/calls.h"
#include "onnx/ops_elementwise.h"
#include "onnx/ops_movement.h"
#include "onnx/ops_network.h"
#include "onnx/ops_quantised.h"
#include "onnx/ops_recurrent.h"
#include "onnx/ops_signal.h"
#include "onnx/ops_selection.h"
#include "onnx/ops_regions.h"
#include "onnx/ops_sequence.h"
#include "onnx/ops_control.h"
#include "onnx/ops_attention.h"
#include "onnx/ops_ml.h"
#include "onnx/ops_maps.h"
#include "onnx/ops_trees.h"
#include "onnx/table.h"
#include "onnx/schema.h"
#include "onnx/build.h"
#endif
