/* session.h - a part of onnx.h: what a program calls to build and run a model. One thread at a time. */
#ifndef ONNX_SESSION_H
#define ONNX_SESSION_H

typedef struct onnx_session onnx_session;

/* What the last build did. */
typedef struct onnx_counts {
    int64_t nodes;       /* that were built, those of subgraphs and functions as often as they were */
    int64_t folded;      /* of them: from constants and shapes alone */
    int64_t early_reads; /* values that were computed and read while the step was built, because a node's shape, a
                            condition or a count needs them */
    int64_t on_host;     /* nodes whose result the builder computed itself, because its size depends on values */
    int64_t joined;      /* nodes that became a part of the convolution before them */
    int64_t parameters;  /* elements of the initialisers */
    int64_t odd_shapes;  /* values of another shape than the file declares */
    double flops;        /* of convolutions, MatMul and Gemm that were built in the context */
} onnx_counts;

/* An input or output as the model declares it: dims below 0 are not known before the inputs are. */
typedef struct onnx_slot {
    onnx_span name;
    onnx_type type; /* of a tensor or of the elements of a sequence */
    bool is_sequence, is_map, is_optional, has_shape, has_default;
    onnx_type key; /* of a map; `type` is that of its values */
    int rank;
    int64_t dims[ONNX_RANK];
    onnx_span symbols[ONNX_RANK]; /* names of sizes that are equal wherever they stand */
} onnx_slot;

/* Walks the graph, its subgraphs and the functions: each node that cannot be built is a line on `refusals` (may be
   NULL): name, op, version, why. NULL if there is one; `error` has the first. Both `m` and `g` outlive the session. */
onnx_session *onnx_session_open(onnx *m, gn_ctx *g, FILE *refusals, char error[ONNX_ERROR]);
void onnx_session_close(onnx_session *s);
int onnx_inputs(const onnx_session *s);
bool onnx_input(const onnx_session *s, int i, onnx_slot *out);
int onnx_outputs(const onnx_session *s);
bool onnx_output(const onnx_session *s, int i, onnx_slot *out);

/* Gives an input of the next builds; t->data stays as it is until the session's next bind of that name or its end.
   False: there is no such input, or its type or shape is another; both are in the message. */
bool onnx_bind(onnx_session *s, const char *name, const onnx_tensor *t, char error[ONNX_ERROR]);
/* The same of a sequence, and of an optional one that holds nothing (n < 0). */
bool onnx_bind_sequence(onnx_session *s, const char *name, const onnx_tensor *t, int n, char error[ONNX_ERROR]);

/* Ends the step of the context and builds the model anew on the inputs. */
bool onnx_build(onnx_session *s, char error[ONNX_ERROR]);
/* Elements of an output: 1 for a tensor, those of a sequence, -1 for an optional one that holds nothing. A map, and a
   sequence of maps with the same keys, has two: keys (K) and values (K) or (N,K). */
int onnx_result_count(const onnx_session *s, int i);
bool onnx_result_is_map(const onnx_session *s, int i);
/* Computes element k of output i. out->data belongs to the session until its next build. */
bool onnx_result(onnx_session *s, int i, int k, onnx_tensor *out, char error[ONNX_ERROR]);
/* Computes all tensors of all outputs in one go. */
bool onnx_run(onnx_session *s, char error[ONNX_ERROR]);
onnx_counts onnx_get_counts(const onnx_session *s);
/* The first of the values whose shape is not the declared one: its node, and both shapes; empty: there is none. Another
   type than the declared one is an error of the build. */
const char *onnx_odd_shape(const onnx_session *s);
/* gn_explain of the outputs that are computed in the context, before they have been; *out_text is freed by the caller.
   False: there is none. */
bool onnx_explain(onnx_session *s, char **out_text, char error[ONNX_ERROR]);
#endif
