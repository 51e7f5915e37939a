/* schema.h - a part of onnx.h: how many inputs an op takes, and what attributes it has, in each version that is read. A
   model that gives more is refused, since what it gives would be left out without a word. */
#ifndef ONNX_SCHEMA_H
#define ONNX_SCHEMA_H

typedef struct onnx__form {
    const char *name;
    const char *inputs;     /* "1 3@11": at most 1, from version 11 on 3; "*": any number */
    const char *attributes; /* "value", "value@11-", "value@8-10", "value@-10": in which versions; behind a colon the
                               texts that it may be, "a|b", where a bar at the end means the empty text, too;
                               "value!": texts that are not held, so that there may be none */
} onnx__form;

static const onnx__form onnx__forms[] = {
    { "Abs", "1", "" },
    { "Acos", "1", "" },
    { "Acosh", "1", "" },
    { "Add", "2", "" },
    { "AffineGrid", "2", "align_corners" },
    { "And", "2", "" },
    { "ArgMax", "1", "axis keepdims select_last_index@12-" },
    { "ArgMin", "1", "axis keepdims select_last_index@12-" },
    { "Asin", "1", "" },
    { "Asinh", "1", "" },
    { "Atan", "1", "" },
    { "Atanh", "1", "" },
    { "Attention", "6 7@24",
      "is_causal kv_num_heads left_window_size@25- q_num_heads qk_matmul_output_mode right_window_size@25- "
      "scale softcap softmax_precision" },
    { "AveragePool", "1",
      "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| ceil_mode@10- count_include_pad dilations@19- kernel_shape "
      "pads strides" },
    { "BatchNormalization", "5", "epsilon momentum spatial@-8 training_mode@14-" },
    { "Bernoulli", "1", "dtype seed" },
    { "BitCast", "1", "to" },
    { "BitShift", "2", "direction:LEFT|RIGHT" },
    { "BitwiseAnd", "2", "" },
    { "BitwiseNot", "1", "" },
    { "BitwiseOr", "2", "" },
    { "BitwiseXor", "2", "" },
    { "BlackmanWindow", "1", "output_datatype periodic" },
    { "Cast", "1", "round_mode@24-:up|down|nearest saturate@19- to" },
    { "CastLike", "2", "round_mode@24-:up|down|nearest saturate@19-" },
    { "CausalConvWithState", "4", "activation:none|silu|swish" },
    { "Ceil", "1", "" },
    { "Celu", "1", "alpha" },
    { "CenterCropPad", "2", "axes" },
    { "Clip", "1 3@11", "max@-10 min@-10" },
    { "Col2Im", "3", "dilations pads strides" },
    { "Compress", "2", "axis" },
    { "Concat", "*", "axis" },
    { "ConcatFromSequence", "1", "axis new_axis" },
    { "Constant", "0",
      "sparse_value@11- value value_float@12- value_floats@12- value_int@12- value_ints@12- value_string@12- "
      "value_strings@12-" },
    { "ConstantOfShape", "1", "value" },
    { "Conv", "3", "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| dilations group kernel_shape pads strides" },
    { "ConvInteger", "4", "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| dilations group kernel_shape pads strides" },
    { "ConvTranspose", "3",
      "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| dilations group kernel_shape output_padding output_shape "
      "pads strides" },
    { "Cos", "1", "" },
    { "Cosh", "1", "" },
    { "CumProd", "2", "exclusive reverse" },
    { "CumSum", "2", "exclusive reverse" },
    { "DFT", "2 3@20", "axis@-19 inverse onesided" },
    { "DeformConv", "5", "dilations group kernel_shape offset_group pads strides" },
    { "DepthToSpace", "1", "blocksize mode@11-:DCR|CRD" },
    { "DequantizeLinear", "3", "axis@13- block_size@21- output_dtype@23-" },
    { "Det", "1", "" },
    { "Div", "2", "" },
    { "Dropout", "1 3@12", "ratio@-11 seed@12-" },
    { "DynamicQuantizeLinear", "1", "" },
    { "Einsum", "*", "equation" },
    { "Elu", "1", "alpha" },
    { "Equal", "2", "" },
    { "Erf", "1", "" },
    { "Exp", "1", "" },
    { "Expand", "2", "" },
    { "EyeLike", "1", "dtype k" },
    { "Flatten", "1", "axis" },
    { "Floor", "1", "" },
    { "GRU", "6",
      "activation_alpha activation_beta activations clip direction:forward|reverse|bidirectional hidden_size "
      "layout@14- linear_before_reset" },
    { "Gather", "2", "axis" },
    { "GatherElements", "2", "axis" },
    { "GatherND", "2", "batch_dims@12-" },
    { "Gelu", "1", "approximate:none|tanh" },
    { "Gemm", "3", "alpha beta transA transB" },
    { "GlobalAveragePool", "1", "" },
    { "GlobalLpPool", "1", "p" },
    { "GlobalMaxPool", "1", "" },
    { "Greater", "2", "" },
    { "GreaterOrEqual", "2", "" },
    { "GridSample", "2",
      "align_corners mode:linear|nearest|cubic|bilinear|bicubic padding_mode:zeros|border|reflection" },
    { "GroupNormalization", "3", "epsilon num_groups stash_type@21-" },
    { "HammingWindow", "1", "output_datatype periodic" },
    { "HannWindow", "1", "output_datatype periodic" },
    { "HardSigmoid", "1", "alpha beta" },
    { "HardSwish", "1", "" },
    { "Hardmax", "1", "axis" },
    { "Identity", "1", "" },
    { "If", "1", "else_branch then_branch" },
    { "InstanceNormalization", "3", "epsilon" },
    { "IsInf", "1", "detect_negative detect_positive" },
    { "IsNaN", "1", "" },
    { "LRN", "1", "alpha beta bias size" },
    { "LSTM", "8",
      "activation_alpha activation_beta activations clip direction:forward|reverse|bidirectional hidden_size "
      "input_forget layout@14-" },
    { "LayerNormalization", "3", "axis epsilon stash_type" },
    { "LeakyRelu", "1", "alpha" },
    { "Less", "2", "" },
    { "LessOrEqual", "2", "" },
    { "LinearAttention", "6", "chunk_size kv_num_heads q_num_heads scale update_rule:linear|gated|delta|gated_delta" },
    { "Log", "1", "" },
    { "LogSoftmax", "1", "axis" },
    { "Loop", "*", "body" },
    { "LpNormalization", "1", "axis p" },
    { "LpPool", "1",
      "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| ceil_mode@18- dilations@18- kernel_shape p pads strides" },
    { "MatMul", "2", "" },
    { "MatMulInteger", "4", "" },
    { "Max", "*", "" },
    { "MaxPool", "1",
      "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| ceil_mode@10- dilations@10- kernel_shape pads "
      "storage_order@8- strides" },
    { "MaxRoiPool", "2", "pooled_shape spatial_scale" },
    { "MaxUnpool", "3", "kernel_shape pads strides" },
    { "Mean", "*", "" },
    { "MeanVarianceNormalization", "1", "axes" },
    { "MelWeightMatrix", "5", "output_datatype" },
    { "Min", "*", "" },
    { "Mish", "1", "" },
    { "Mod", "2", "fmod" },
    { "Mul", "2", "" },
    { "Multinomial", "1", "dtype sample_size seed" },
    { "Neg", "1", "" },
    { "NegativeLogLikelihoodLoss", "3", "ignore_index reduction:none|sum|mean" },
    { "NonMaxSuppression", "5", "center_point_box" },
    { "NonZero", "1", "" },
    { "Not", "1", "" },
    { "OneHot", "3", "axis" },
    { "Optional", "1", "type" },
    { "OptionalGetElement", "1", "" },
    { "OptionalHasElement", "1", "" },
    { "Or", "2", "" },
    { "PRelu", "2", "" },
    { "Pad", "1 3@11 4@18", "mode:constant|reflect|edge|wrap pads@-10 value@-10" },
    { "Pow", "2", "" },
    { "QLinearConv", "9", "auto_pad:NOTSET|SAME_UPPER|SAME_LOWER|VALID| dilations group kernel_shape pads strides" },
    { "QLinearMatMul", "8", "" },
    { "QuantizeLinear", "3", "axis@13- block_size@21- output_dtype@21- precision@23- saturate@19-" },
    { "RMSNormalization", "2", "axis epsilon stash_type" },
    { "RNN", "6",
      "activation_alpha activation_beta activations clip direction:forward|reverse|bidirectional hidden_size "
      "layout@14-" },
    { "RandomNormal", "0", "dtype mean scale seed shape" },
    { "RandomNormalLike", "1", "dtype mean scale seed" },
    { "RandomUniform", "0", "dtype high low seed shape" },
    { "RandomUniformLike", "1", "dtype high low seed" },
    { "Range", "3", "stash_type@27-" },
    { "Reciprocal", "1", "" },
    { "ReduceL1", "1 2@18", "axes@-17 keepdims noop_with_empty_axes@18-" },
    { "ReduceL2", "1 2@18", "axes@-17 keepdims noop_with_empty_axes@18-" },
    { "ReduceLogSum", "1 2@18", "axes@-17 keepdims noop_with_empty_axes@18-" },
    { "ReduceLogSumExp", "1 2@18", "axes@-17 keepdims noop_with_empty_axes@18-" },
    { "ReduceMax", "1 2@18", "axes@-17 keepdims noop_with_empty_axes@18-" },
    { "ReduceMean", "1 2@18", "axes@-17 keepdims noop_with_empty_axes@18-" },
    { "ReduceMin", "1 2@18", "axes@-17 keepdims noop_with_empty_axes@18-" },
    { "ReduceProd", "1 2@18", "axes@-17 keepdims noop_with_empty_axes@18-" },
    { "ReduceSum", "1 2@13", "axes@-12 keepdims noop_with_empty_axes@13-" },
    { "ReduceSumSquare", "1 2@18", "axes@-17 keepdims noop_with_empty_axes@18-" },
    { "Relu", "1", "" },
    { "Reshape", "2", "allowzero@14-" },
    { "Resize", "2 4@11",
      "antialias@18- axes@18- "
      "coordinate_transformation_mode@11-:half_pixel|half_pixel_symmetric|pytorch_half_pixel|align_corners|asymmetric|"
      "tf_crop_and_resize|tf_half_pixel_for_nn "
      "cubic_coeff_a@11- exclude_outside@11- extrapolation_value@11- "
      "keep_aspect_ratio_policy@18-:stretch|not_larger|not_smaller mode:nearest|linear|cubic "
      "nearest_mode@11-:round_prefer_floor|round_prefer_ceil|floor|ceil" },
    { "ReverseSequence", "2", "batch_axis time_axis" },
    { "RoiAlign", "3",
      "coordinate_transformation_mode@16-:half_pixel|output_half_pixel mode:avg|max output_height output_width "
      "sampling_ratio spatial_scale" },
    { "RotaryEmbedding", "4", "interleaved num_heads rotary_embedding_dim" },
    { "Round", "1", "" },
    { "STFT", "4", "onesided" },
    { "Scan", "*",
      "body directions@-8 num_scan_inputs scan_input_axes@9- scan_input_directions@9- scan_output_axes@9- "
      "scan_output_directions@9-" },
    { "Scatter", "3", "axis" },
    { "ScatterElements", "3", "axis reduction@16-:none|add|mul|max|min" },
    { "ScatterND", "3", "reduction@16-:none|add|mul|max|min" },
    { "Selu", "1", "alpha gamma" },
    { "SequenceAt", "2", "" },
    { "SequenceConstruct", "*", "" },
    { "SequenceEmpty", "0", "dtype" },
    { "SequenceErase", "2", "" },
    { "SequenceInsert", "3", "" },
    { "SequenceLength", "1", "" },
    { "SequenceMap", "*", "body" },
    { "Shape", "1", "end@15- start@15-" },
    { "Shrink", "1", "bias lambd" },
    { "Sigmoid", "1", "" },
    { "Sign", "1", "" },
    { "Sin", "1", "" },
    { "Sinh", "1", "" },
    { "Size", "1", "" },
    { "Slice", "1 5@10", "axes@-9 ends@-9 starts@-9" },
    { "Softmax", "1", "axis" },
    { "SoftmaxCrossEntropyLoss", "3", "ignore_index reduction:none|sum|mean" },
    { "Softplus", "1", "" },
    { "Softsign", "1", "" },
    { "SpaceToDepth", "1", "blocksize mode@28-:DCR|CRD" },
    { "Split", "1 2@13", "axis num_outputs@18- split@-12" },
    { "SplitToSequence", "2", "axis keepdims" },
    { "Sqrt", "1", "" },
    { "Squeeze", "1 2@13", "axes@-12" },
    { "Sub", "2", "" },
    { "Sum", "*", "" },
    { "SwiGLU", "2", "alpha" },
    { "Swish", "1", "alpha" },
    { "Tan", "1", "" },
    { "Tanh", "1", "" },
    { "TensorScatter", "3", "axis mode:linear|circular" },
    { "TfIdfVectorizer", "1",
      "max_gram_length max_skip_count min_gram_length mode:TF|IDF|TFIDF ngram_counts ngram_indexes pool_int64s "
      "pool_strings! weights" },
    { "ThresholdedRelu", "1", "alpha" },
    { "Tile", "2", "" },
    { "TopK", "1 2@10", "axis k@-9 largest@11- sorted@11-" },
    { "Transpose", "1", "perm" },
    { "Trilu", "2", "upper" },
    { "Unique", "1", "axis sorted" },
    { "Unsqueeze", "1 2@13", "axes@-12" },
    { "Upsample", "1 2@9", "mode:nearest|linear|cubic scales@-8" },
    { "Where", "3", "" },
    { "Xor", "2", "" },
    { "ai.onnx.ml:ArrayFeatureExtractor", "2", "" },
    { "ai.onnx.ml:Binarizer", "1", "threshold" },
    { "ai.onnx.ml:CastMap", "1", "cast_to:TO_FLOAT|TO_INT64 map_form:DENSE|SPARSE max_map" },
    { "ai.onnx.ml:DictVectorizer", "1", "int64_vocabulary string_vocabulary!" },
    { "ai.onnx.ml:FeatureVectorizer", "*", "inputdimensions" },
    { "ai.onnx.ml:Imputer", "1",
      "imputed_value_floats imputed_value_int64s replaced_value_float replaced_value_int64" },
    { "ai.onnx.ml:LabelEncoder", "1",
      "default_float default_int64 default_string default_tensor@4- keys_floats keys_int64s keys_strings! "
      "keys_tensor@4- values_floats values_int64s values_strings! values_tensor@4-" },
    { "ai.onnx.ml:LinearClassifier", "1",
      "classlabels_ints classlabels_strings! coefficients intercepts multi_class "
      "post_transform:NONE|SOFTMAX|LOGISTIC|SOFTMAX_ZERO|PROBIT" },
    { "ai.onnx.ml:LinearRegressor", "1",
      "coefficients intercepts post_transform:NONE|SOFTMAX|LOGISTIC|SOFTMAX_ZERO|PROBIT targets" },
    { "ai.onnx.ml:Normalizer", "1", "norm:MAX|L1|L2" },
    { "ai.onnx.ml:OneHotEncoder", "1", "cats_int64s cats_strings! zeros" },
    { "ai.onnx.ml:SVMClassifier", "1",
      "classlabels_ints classlabels_strings! coefficients kernel_params kernel_type:LINEAR|POLY|RBF|SIGMOID "
      "post_transform:NONE|SOFTMAX|LOGISTIC|SOFTMAX_ZERO|PROBIT prob_a prob_b rho support_vectors vectors_per_class" },
    { "ai.onnx.ml:SVMRegressor", "1",
      "coefficients kernel_params kernel_type:LINEAR|POLY|RBF|SIGMOID n_supports one_class "
      "post_transform:NONE|SOFTMAX|LOGISTIC|SOFTMAX_ZERO|PROBIT rho support_vectors" },
    { "ai.onnx.ml:Scaler", "1", "offset scale" },
    { "ai.onnx.ml:TreeEnsemble", "1",
      "aggregate_function leaf_targetids leaf_weights membership_values n_targets nodes_falseleafs "
      "nodes_falsenodeids nodes_featureids nodes_hitrates nodes_missing_value_tracks_true nodes_modes "
      "nodes_splits nodes_trueleafs nodes_truenodeids post_transform tree_roots" },
    { "ai.onnx.ml:TreeEnsembleClassifier", "1",
      "base_values base_values_as_tensor@3- class_ids class_nodeids class_treeids class_weights "
      "class_weights_as_tensor@3- classlabels_int64s classlabels_strings! nodes_falsenodeids nodes_featureids "
      "nodes_hitrates nodes_hitrates_as_tensor@3- nodes_missing_value_tracks_true nodes_modes nodes_nodeids "
      "nodes_treeids nodes_truenodeids nodes_values nodes_values_as_tensor@3- "
      "post_transform:NONE|SOFTMAX|LOGISTIC|SOFTMAX_ZERO|PROBIT" },
    { "ai.onnx.ml:TreeEnsembleRegressor", "1",
      "aggregate_function:AVERAGE|SUM|MIN|MAX base_values base_values_as_tensor@3- n_targets nodes_falsenodeids "
      "nodes_featureids nodes_hitrates nodes_hitrates_as_tensor@3- nodes_missing_value_tracks_true nodes_modes "
      "nodes_nodeids nodes_treeids nodes_truenodeids nodes_values nodes_values_as_tensor@3- "
      "post_transform:NONE|SOFTMAX|LOGISTIC|SOFTMAX_ZERO|PROBIT target_ids target_nodeids target_treeids "
      "target_weights target_weights_as_tensor@3-" },
    { "ai.onnx.ml:ZipMap", "1", "classlabels_int64s classlabels_strings!" },
    { "ai.onnx.preview.training:Adagrad", "*", "decay_factor epsilon norm_coefficient" },
    { "ai.onnx.preview.training:Adam", "*", "alpha beta epsilon norm_coefficient norm_coefficient_post" },
    { "ai.onnx.preview.training:Momentum", "*", "alpha beta mode:standard|nesterov norm_coefficient" },
    { "ai.onnx.preview:FlexAttention", "3", "prob_mod scale score_mod softmax_precision" },
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

/* "since-until" at p, of which either may be missing. */
static bool onnx__in_versions(const char *p, int version) {
    const char *until = strchr(p, '-') + 1;
    return (*p == '-' || version >= atoi(p)) && (*until < '0' || *until > '9' || version <= atoi(until));
}

/* The most inputs of that version; -1: any number. */
static int onnx__most_inputs(const onnx__form *form, int version) {
    int most = -1;
    for (const char *p = form->inputs; *p; p += strcspn(p, " "), p += *p == ' ') {
        size_t word = strcspn(p, " "), at = strcspn(p, "@");
        if (at < word && version < atoi(p + at + 1)) break;
        most = *p == '*' ? -1 : atoi(p);
    }
    return most;
}

/* Why an attribute's text is none of the list. */
static bool onnx__not_among(const char *list, onnx_span name, onnx_span text, char why[ONNX_ERROR / 2]) {
    size_t at = (size_t)snprintf(why, ONNX_ERROR / 2, "attribute '%.*s' is '%.*s', known are ", ONNX__SHOW(name),
                                 ONNX__SHOW(text));
    for (; *list && *list != ' '; list++)
        if (*list != '|') at += (size_t)snprintf(why + at, ONNX_ERROR / 2 - at, "%c", *list);
        else if (list[1] && list[1] != ' ') at += (size_t)snprintf(why + at, ONNX_ERROR / 2 - at, ", ");
    return false;
}

/* The attribute `name` of an op, an AttributeProto. False: `why` says what is wrong with it. One that refers to its
   function's has no text of its own yet. */
static bool onnx__attribute_fits(const onnx__form *form, int version, onnx_span name, onnx_span attribute,
                                 char why[ONNX_ERROR / 2]) {
    const char *p = form->attributes;
    onnx_span text = onnx__get(attribute, 4).bytes;
    bool refers = onnx__size(onnx__get(attribute, 21).bytes) > 0, other = false;
    for (; *p; p += strcspn(p, " "), p += *p == ' ') {
        size_t n = strcspn(p, "@:! "), list = strcspn(p, ": ");
        if (onnx__size(name) != n || memcmp(name.at, p, n)) continue;
        other = p[n] == '@' && !onnx__in_versions(p + n + 1, version);
        if (other) break;
        if (p[n] == '!' && onnx__get(attribute, 9).at) {
            snprintf(why, ONNX_ERROR / 2, "'%.*s': strings are not held, export it with numbers", ONNX__SHOW(name));
            return false;
        }
        if (p[list] != ':' || refers || onnx__is_choice(p + list + 1, text)) return true;
        return onnx__not_among(p + list + 1, name, text, why);
    }
    if (onnx__size(name) > 1 && !memcmp(name.at, "__", 2)) return true; /* exporters' own, as ONNX's checker has it */
    snprintf(why, ONNX_ERROR / 2, "it has no attribute '%.*s'%s", ONNX__SHOW(name), other ? " in this version" : "");
    return false;
}

static const onnx__form *onnx__find_form(const onnx__op *op) {
    for (size_t i = 0; i < sizeof onnx__forms / sizeof *onnx__forms; i++)
        if (!strcmp(onnx__forms[i].name, op->name)) return &onnx__forms[i];
    return NULL;
}
#endif
