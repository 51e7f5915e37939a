/* schema.h - a part of onnx.h: how many inputs an op takes, and what attributes it has in any version that is read. A
   model that gives more is refused, since what it gives would be left out without a word. */
#ifndef ONNX_SCHEMA_H
#define ONNX_SCHEMA_H

/* Attributes stand between spaces; behind a colon the texts that one may have. A list that ends with a bar has the empty
   text in it, too. */
typedef struct onnx__form {
    const char *name;
    int inputs; /* at most; -1: any number */
    const char *attributes;
} onnx__form;

static const onnx__form onnx__forms[] = {
    { "Abs", 1, "" },
    { "Acos", 1, "" },
    { "Acosh", 1, "" },
    { "Add", 2, "" },
    { "AffineGrid", 2, "align_corners" },
    { "And", 2, "" },
    { "ArgMax", 1, "axis keepdims select_last_index" },
    { "ArgMin", 1, "axis keepdims select_last_index" },
    { "Asin", 1, "" },
    { "Asinh", 1, "" },
    { "Atan", 1, "" },
    { "Atanh", 1, "" },
    { "Attention", 7,
      "is_causal kv_num_heads left_window_size q_num_heads qk_matmul_output_mode right_window_size scale "
      "softcap softmax_precision" },
    { "AveragePool", 1,
      "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| ceil_mode count_include_pad dilations kernel_shape pads "
      "strides" },
    { "BatchNormalization", 5, "epsilon momentum spatial training_mode" },
    { "Bernoulli", 1, "dtype seed" },
    { "BitCast", 1, "to" },
    { "BitShift", 2, "direction:LEFT|RIGHT" },
    { "BitwiseAnd", 2, "" },
    { "BitwiseNot", 1, "" },
    { "BitwiseOr", 2, "" },
    { "BitwiseXor", 2, "" },
    { "BlackmanWindow", 1, "output_datatype periodic" },
    { "Cast", 1, "round_mode:up|down|nearest saturate to" },
    { "CastLike", 2, "round_mode:up|down|nearest saturate" },
    { "CausalConvWithState", 4, "activation:none|silu|swish" },
    { "Ceil", 1, "" },
    { "Celu", 1, "alpha" },
    { "CenterCropPad", 2, "axes" },
    { "Clip", 3, "max min" },
    { "Col2Im", 3, "dilations pads strides" },
    { "Compress", 2, "axis" },
    { "Concat", -1, "axis" },
    { "ConcatFromSequence", 1, "axis new_axis" },
    { "Constant", 0, "sparse_value value value_float value_floats value_int value_ints value_string value_strings" },
    { "ConstantOfShape", 1, "value" },
    { "Conv", 3, "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| dilations group kernel_shape pads strides" },
    { "ConvInteger", 4, "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| dilations group kernel_shape pads strides" },
    { "ConvTranspose", 3,
      "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| dilations group kernel_shape output_padding output_shape "
      "pads strides" },
    { "Cos", 1, "" },
    { "Cosh", 1, "" },
    { "CumProd", 2, "exclusive reverse" },
    { "CumSum", 2, "exclusive reverse" },
    { "DFT", 3, "axis inverse onesided" },
    { "DeformConv", 5, "dilations group kernel_shape offset_group pads strides" },
    { "DepthToSpace", 1, "blocksize mode:DCR|CRD" },
    { "DequantizeLinear", 3, "axis block_size output_dtype" },
    { "Det", 1, "" },
    { "Div", 2, "" },
    { "Dropout", 3, "ratio seed" },
    { "DynamicQuantizeLinear", 1, "" },
    { "Einsum", -1, "equation" },
    { "Elu", 1, "alpha" },
    { "Equal", 2, "" },
    { "Erf", 1, "" },
    { "Exp", 1, "" },
    { "Expand", 2, "" },
    { "EyeLike", 1, "dtype k" },
    { "Flatten", 1, "axis" },
    { "Floor", 1, "" },
    { "GRU", 6,
      "activation_alpha activation_beta activations clip direction:forward|reverse|bidirectional hidden_size "
      "layout linear_before_reset" },
    { "Gather", 2, "axis" },
    { "GatherElements", 2, "axis" },
    { "GatherND", 2, "batch_dims" },
    { "Gelu", 1, "approximate:none|tanh" },
    { "Gemm", 3, "alpha beta transA transB" },
    { "GlobalAveragePool", 1, "" },
    { "GlobalLpPool", 1, "p" },
    { "GlobalMaxPool", 1, "" },
    { "Greater", 2, "" },
    { "GreaterOrEqual", 2, "" },
    { "GridSample", 2,
      "align_corners mode:linear|nearest|cubic|bilinear|bicubic padding_mode:zeros|border|reflection" },
    { "GroupNormalization", 3, "epsilon num_groups stash_type" },
    { "HammingWindow", 1, "output_datatype periodic" },
    { "HannWindow", 1, "output_datatype periodic" },
    { "HardSigmoid", 1, "alpha beta" },
    { "HardSwish", 1, "" },
    { "Hardmax", 1, "axis" },
    { "Identity", 1, "" },
    { "If", 1, "else_branch then_branch" },
    { "InstanceNormalization", 3, "epsilon" },
    { "IsInf", 1, "detect_negative detect_positive" },
    { "IsNaN", 1, "" },
    { "LRN", 1, "alpha beta bias size" },
    { "LSTM", 8,
      "activation_alpha activation_beta activations clip direction:forward|reverse|bidirectional hidden_size "
      "input_forget layout" },
    { "LayerNormalization", 3, "axis epsilon stash_type" },
    { "LeakyRelu", 1, "alpha" },
    { "Less", 2, "" },
    { "LessOrEqual", 2, "" },
    { "LinearAttention", 6, "chunk_size kv_num_heads q_num_heads scale update_rule:linear|gated|delta|gated_delta" },
    { "Log", 1, "" },
    { "LogSoftmax", 1, "axis" },
    { "Loop", -1, "body" },
    { "LpNormalization", 1, "axis p" },
    { "LpPool", 1, "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| ceil_mode dilations kernel_shape p pads strides" },
    { "MatMul", 2, "" },
    { "MatMulInteger", 4, "" },
    { "Max", -1, "" },
    { "MaxPool", 1,
      "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| ceil_mode dilations kernel_shape pads storage_order strides" },
    { "MaxUnpool", 3, "kernel_shape pads strides" },
    { "Mean", -1, "" },
    { "MeanVarianceNormalization", 1, "axes" },
    { "MelWeightMatrix", 5, "output_datatype" },
    { "Min", -1, "" },
    { "Mish", 1, "" },
    { "Mod", 2, "fmod" },
    { "Mul", 2, "" },
    { "Neg", 1, "" },
    { "NegativeLogLikelihoodLoss", 3, "ignore_index reduction:none|sum|mean" },
    { "NonMaxSuppression", 5, "center_point_box" },
    { "NonZero", 1, "" },
    { "Not", 1, "" },
    { "OneHot", 3, "axis" },
    { "Optional", 1, "type" },
    { "OptionalGetElement", 1, "" },
    { "OptionalHasElement", 1, "" },
    { "Or", 2, "" },
    { "PRelu", 2, "" },
    { "Pad", 4, "mode:constant|reflect|edge|wrap pads value" },
    { "Pow", 2, "" },
    { "QLinearConv", 9, "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| dilations group kernel_shape pads strides" },
    { "QLinearMatMul", 8, "" },
    { "QuantizeLinear", 3, "axis block_size output_dtype precision saturate" },
    { "RMSNormalization", 2, "axis epsilon stash_type" },
    { "RNN", 6,
      "activation_alpha activation_beta activations clip direction:forward|reverse|bidirectional hidden_size "
      "layout" },
    { "RandomNormal", 0, "dtype mean scale seed shape" },
    { "RandomNormalLike", 1, "dtype mean scale seed" },
    { "RandomUniform", 0, "dtype high low seed shape" },
    { "RandomUniformLike", 1, "dtype high low seed" },
    { "Range", 3, "stash_type" },
    { "Reciprocal", 1, "" },
    { "ReduceL1", 2, "axes keepdims noop_with_empty_axes" },
    { "ReduceL2", 2, "axes keepdims noop_with_empty_axes" },
    { "ReduceLogSum", 2, "axes keepdims noop_with_empty_axes" },
    { "ReduceLogSumExp", 2, "axes keepdims noop_with_empty_axes" },
    { "ReduceMax", 2, "axes keepdims noop_with_empty_axes" },
    { "ReduceMean", 2, "axes keepdims noop_with_empty_axes" },
    { "ReduceMin", 2, "axes keepdims noop_with_empty_axes" },
    { "ReduceProd", 2, "axes keepdims noop_with_empty_axes" },
    { "ReduceSum", 2, "axes keepdims noop_with_empty_axes" },
    { "ReduceSumSquare", 2, "axes keepdims noop_with_empty_axes" },
    { "Relu", 1, "" },
    { "Reshape", 2, "allowzero" },
    { "Resize", 4,
      "antialias axes "
      "coordinate_transformation_mode:half_pixel|half_pixel_symmetric|pytorch_half_pixel|align_corners|asymmetric|tf_"
      "crop_and_resize "
      "cubic_coeff_a exclude_outside extrapolation_value "
      "keep_aspect_ratio_policy:stretch|not_larger|not_smaller mode:nearest|linear|cubic "
      "nearest_mode:round_prefer_floor|round_prefer_ceil|floor|ceil" },
    { "ReverseSequence", 2, "batch_axis time_axis" },
    { "RoiAlign", 3,
      "coordinate_transformation_mode:half_pixel|output_half_pixel mode:avg|max output_height output_width "
      "sampling_ratio spatial_scale" },
    { "RotaryEmbedding", 4, "interleaved num_heads rotary_embedding_dim" },
    { "Round", 1, "" },
    { "STFT", 4, "onesided" },
    { "Scan", -1,
      "body directions num_scan_inputs scan_input_axes scan_input_directions scan_output_axes "
      "scan_output_directions" },
    { "Scatter", 3, "axis" },
    { "ScatterElements", 3, "axis reduction:none|add|mul|max|min" },
    { "ScatterND", 3, "reduction:none|add|mul|max|min" },
    { "Selu", 1, "alpha gamma" },
    { "SequenceAt", 2, "" },
    { "SequenceConstruct", -1, "" },
    { "SequenceEmpty", 0, "dtype" },
    { "SequenceErase", 2, "" },
    { "SequenceInsert", 3, "" },
    { "SequenceLength", 1, "" },
    { "SequenceMap", -1, "body" },
    { "Shape", 1, "end start" },
    { "Shrink", 1, "bias lambd" },
    { "Sigmoid", 1, "" },
    { "Sign", 1, "" },
    { "Sin", 1, "" },
    { "Sinh", 1, "" },
    { "Size", 1, "" },
    { "Slice", 5, "axes ends starts" },
    { "Softmax", 1, "axis" },
    { "SoftmaxCrossEntropyLoss", 3, "ignore_index reduction:none|sum|mean" },
    { "Softplus", 1, "" },
    { "Softsign", 1, "" },
    { "SpaceToDepth", 1, "blocksize mode:DCR|CRD" },
    { "Split", 2, "axis num_outputs split" },
    { "SplitToSequence", 2, "axis keepdims" },
    { "Sqrt", 1, "" },
    { "Squeeze", 2, "axes" },
    { "Sub", 2, "" },
    { "Sum", -1, "" },
    { "SwiGLU", 2, "alpha" },
    { "Swish", 1, "alpha" },
    { "Tan", 1, "" },
    { "Tanh", 1, "" },
    { "TensorScatter", 3, "axis mode:linear|circular" },
    { "TfIdfVectorizer", 1,
      "max_gram_length max_skip_count min_gram_length mode:TF|IDF|TFIDF ngram_counts ngram_indexes pool_int64s "
      "pool_strings weights" },
    { "ThresholdedRelu", 1, "alpha" },
    { "Tile", 2, "" },
    { "TopK", 2, "axis k largest sorted" },
    { "Transpose", 1, "perm" },
    { "Trilu", 2, "upper" },
    { "Unique", 1, "axis sorted" },
    { "Unsqueeze", 2, "axes" },
    { "Upsample", 2, "mode:nearest|linear|cubic scales" },
    { "Where", 3, "" },
    { "Xor", 2, "" },
    { "ai.onnx.ml:ArrayFeatureExtractor", 2, "" },
    { "ai.onnx.ml:Binarizer", 1, "threshold" },
    { "ai.onnx.ml:TreeEnsemble", 1,
      "aggregate_function leaf_targetids leaf_weights membership_values n_targets nodes_falseleafs "
      "nodes_falsenodeids nodes_featureids nodes_hitrates nodes_missing_value_tracks_true nodes_modes "
      "nodes_splits nodes_trueleafs nodes_truenodeids post_transform tree_roots" },
    { "ai.onnx.preview.training:Adagrad", -1, "decay_factor epsilon norm_coefficient" },
    { "ai.onnx.preview.training:Adam", -1, "alpha beta epsilon norm_coefficient norm_coefficient_post" },
    { "ai.onnx.preview.training:Momentum", -1, "alpha beta mode:standard|nesterov norm_coefficient" },
    { "ai.onnx.preview:FlexAttention", 3, "prob_mod scale score_mod softmax_precision" },
};

/* Whether the text stands between the bars of a list that ends at a space or the end. */
static bool onnx__is_choice(const char *list, onnx_span text) {
    for (;;) {
        size_t n = strcspn(list, "| ");
        if (onnx__size(text) == n && (!n || !memcmp(text.at, list, n))) return true;
        if (list[n] != '|') return false;
        list += n + 1;
    }
}

/* The attribute `name` of an op, an AttributeProto. False: `why` says what is wrong with it. One that refers to its
   function's has no text of its own yet. */
static bool onnx__attribute_fits(const onnx__form *form, onnx_span name, onnx_span attribute,
                                 char why[ONNX_ERROR / 2]) {
    const char *p = form->attributes;
    onnx_span text = onnx__get(attribute, 4).bytes;
    for (; *p; p += strcspn(p, " "), p += *p == ' ') {
        size_t n = strcspn(p, ": ");
        if (onnx__size(name) != n || memcmp(name.at, p, n)) continue;
        if (p[n] != ':' || onnx__size(onnx__get(attribute, 21).bytes) || onnx__is_choice(p + n + 1, text)) return true;
        size_t at = (size_t)snprintf(why, ONNX_ERROR / 2, "attribute '%.*s' is '%.*s', known are ", ONNX__SHOW(name),
                                     ONNX__SHOW(text));
        for (p += n + 1; *p && *p != ' '; p++)
            if (*p != '|') at += (size_t)snprintf(why + at, ONNX_ERROR / 2 - at, "%c", *p);
            else if (p[1] && p[1] != ' ') at += (size_t)snprintf(why + at, ONNX_ERROR / 2 - at, ", ");
        return false;
    }
    if (onnx__size(name) > 1 && !memcmp(name.at, "__", 2))
        return true; /* marks of exporters, as ONNX's checker has it */
    snprintf(why, ONNX_ERROR / 2, "it has no attribute '%.*s'", ONNX__SHOW(name));
    return false;
}

static const onnx__form *onnx__find_form(const onnx__op *op) {
    for (size_t i = 0; i < sizeof onnx__forms / sizeof *onnx__forms; i++)
        if (!strcmp(onnx__forms[i].name, op->name)) return &onnx__forms[i];
    return NULL;
}
#endif
