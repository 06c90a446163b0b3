"""The ops that an engine supports, with the arguments of their ATen schemas.

A copy of src/engine/graph/ops.inc, the original. A test compares the two with each other and with torch's schemas.
"""

ARGUMENTS = {
    "_c10d_functional.all_gather_into_tensor.default": "Tensor input, int group_size, str group_name",
    "_c10d_functional.all_reduce.default": "Tensor input, str reduce_op, str group_name",
    "_c10d_functional.all_to_all_single.default": "Tensor input, int[] output_split_sizes, int[] input_split_sizes, "
    "str group_name",
    "_c10d_functional.broadcast.default": "Tensor input, int src, str group_name",
    "_c10d_functional.reduce_scatter_tensor.default": "Tensor input, str reduce_op, int group_size, str group_name",
    "accord.adapted_linear.default": "Tensor input, Tensor weight, Tensor down, Tensor up, Tensor adapters, "
    "Tensor? bias=None",
    "accord.attention.default": "Tensor query, Tensor key, Tensor? value, int layer, float scale, int window=0, "
    "float softcap=0.0, Tensor? sinks=None, Tensor? slopes=None, int value_dim=0, int chunk=0, "
    "Tensor? biases=None",
    "accord.cache_source.default": "Tensor key, Tensor value, int layer",
    "accord.causal_convolution.default": "Tensor input, Tensor weight, int state, Tensor? bias=None",
    "accord.cross_attention.default": "Tensor query, int layer, float scale, int value_dim",
    "accord.experts.default": "Tensor input, Tensor experts, Tensor weights, Tensor up, Tensor down, Tensor? gate=None, "
    'str activation="silu", Tensor? up_bias=None, Tensor? gate_bias=None, float limit=0.0, float alpha=1.0, '
    "float offset=0.0",
    "accord.head_linear.default": "Tensor input, Tensor weight",
    "accord.linear_recurrence.default": "Tensor query, Tensor key, Tensor value, Tensor decay, int state, "
    "Tensor? beta=None",
    "accord.wkv.default": "Tensor key, Tensor value, Tensor decay, Tensor bonus, int state",
    "aten._log_softmax.default": "Tensor self, int dim, bool half_to_float",
    "aten._softmax.default": "Tensor self, int dim, bool half_to_float",
    "aten._to_copy.default": "Tensor self, ScalarType? dtype=None",
    "aten.abs.default": "Tensor self",
    "aten.add.Scalar": "Tensor self, Scalar other, Scalar alpha=1",
    "aten.add.Tensor": "Tensor self, Tensor|Scalar other, Scalar alpha=1",
    "aten.addmm.default": "Tensor self, Tensor mat1, Tensor mat2, Scalar beta=1, Scalar alpha=1",
    "aten.amax.default": "Tensor self, int[] dim=[], bool keepdim=False",
    "aten.amin.default": "Tensor self, int[] dim=[], bool keepdim=False",
    "aten.any.default": "Tensor self",
    "aten.any.dim": "Tensor self, int dim, bool keepdim=False",
    "aten.any.dims": "Tensor self, int[]? dim=None, bool keepdim=False",
    "aten.arange.start_step": "Scalar start, Scalar end, Scalar step=1, ScalarType? dtype=None",
    "aten.bitwise_and.Scalar": "Tensor self, Scalar other",
    "aten.bitwise_and.Tensor": "Tensor self, Tensor|Scalar other",
    "aten.bitwise_not.default": "Tensor self",
    "aten.bitwise_or.Scalar": "Tensor self, Scalar other",
    "aten.bitwise_or.Tensor": "Tensor self, Tensor|Scalar other",
    "aten.bmm.default": "Tensor self, Tensor mat2",
    "aten.cat.default": "Tensor[] tensors, int dim=0",
    "aten.ceil.default": "Tensor self",
    "aten.clamp.default": "Tensor self, Scalar? min=None, Scalar? max=None",
    "aten.convolution.default": "Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, bool transposed, int[] output_padding, int groups",
    "aten.cos.default": "Tensor self",
    "aten.cumsum.default": "Tensor self, int dim, ScalarType? dtype=None",
    "aten.div.Scalar": "Tensor self, Scalar other",
    "aten.div.Scalar_mode": "Tensor self, Scalar other, str? rounding_mode",
    "aten.div.Tensor": "Tensor self, Tensor|Scalar other",
    "aten.div.Tensor_mode": "Tensor self, Tensor|Scalar other, str? rounding_mode",
    "aten.embedding.default": "Tensor weight, Tensor indices",
    "aten.eq.Scalar": "Tensor self, Scalar other",
    "aten.eq.Tensor": "Tensor self, Tensor other",
    "aten.erf.default": "Tensor self",
    "aten.exp.default": "Tensor self",
    "aten.expand.default": "Tensor self, int[] size",
    "aten.floor.default": "Tensor self",
    "aten.full.default": "int[] size, Scalar fill_value, ScalarType? dtype=None",
    "aten.full_like.default": "Tensor self, Scalar fill_value, ScalarType? dtype=None",
    "aten.gather.default": "Tensor self, int dim, Tensor index",
    "aten.ge.Scalar": "Tensor self, Scalar other",
    "aten.ge.Tensor": "Tensor self, Tensor other",
    "aten.gelu.default": 'Tensor self, str approximate="none"',
    "aten.group_norm.default": "Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05",
    "aten.gt.Scalar": "Tensor self, Scalar other",
    "aten.gt.Tensor": "Tensor self, Tensor other",
    "aten.index.Tensor": "Tensor self, Tensor[] indices",
    "aten.index_select.default": "Tensor self, int dim, Tensor index",
    "aten.layer_norm.default": "Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
    "float eps=1e-05",
    "aten.le.Scalar": "Tensor self, Scalar other",
    "aten.le.Tensor": "Tensor self, Tensor other",
    "aten.linalg_vector_norm.default": "Tensor self, Scalar ord=2, int[]? dim=None, bool keepdim=False, "
    "ScalarType? dtype=None",
    "aten.linear.default": "Tensor input, Tensor weight, Tensor? bias=None",
    "aten.log.default": "Tensor self",
    "aten.log1p.default": "Tensor self",
    "aten.logical_and.default": "Tensor self, Tensor other",
    "aten.logical_not.default": "Tensor self",
    "aten.logical_or.default": "Tensor self, Tensor other",
    "aten.logical_xor.default": "Tensor self, Tensor other",
    "aten.lt.Scalar": "Tensor self, Scalar other",
    "aten.lt.Tensor": "Tensor self, Tensor other",
    "aten.maximum.default": "Tensor self, Tensor other",
    "aten.mean.default": "Tensor self, ScalarType? dtype=None",
    "aten.mean.dim": "Tensor self, int[]? dim, bool keepdim=False, ScalarType? dtype=None",
    "aten.minimum.default": "Tensor self, Tensor other",
    "aten.mm.default": "Tensor self, Tensor mat2",
    "aten.mul.Scalar": "Tensor self, Scalar other",
    "aten.mul.Tensor": "Tensor self, Tensor|Scalar other",
    "aten.ne.Scalar": "Tensor self, Scalar other",
    "aten.ne.Tensor": "Tensor self, Tensor other",
    "aten.neg.default": "Tensor self",
    "aten.permute.default": "Tensor self, int[] dims",
    "aten.pow.Scalar": "Scalar self, Tensor exponent",
    "aten.pow.Tensor_Scalar": "Tensor self, Scalar exponent",
    "aten.pow.Tensor_Tensor": "Tensor self, Tensor exponent",
    "aten.reciprocal.default": "Tensor self",
    "aten.relu.default": "Tensor self",
    "aten.rms_norm.default": "Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None",
    "aten.rsqrt.default": "Tensor self",
    "aten.scalar_tensor.default": "Scalar s, ScalarType? dtype=None",
    "aten.scaled_dot_product_attention.default": "Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    "float dropout_p=0.0, bool is_causal=False, float? scale=None, bool enable_gqa=False",
    "aten.select.int": "Tensor self, int dim, int index",
    "aten.sigmoid.default": "Tensor self",
    "aten.silu.default": "Tensor self",
    "aten.sin.default": "Tensor self",
    "aten.slice.Tensor": "Tensor self, int dim=0, int? start=None, int? end=None, int step=1",
    "aten.split_with_sizes.default": "Tensor self, int[] split_sizes, int dim=0",
    "aten.sqrt.default": "Tensor self",
    "aten.squeeze.dims": "Tensor self, int[] dim",
    "aten.sub.Scalar": "Tensor self, Scalar other, Scalar alpha=1",
    "aten.sub.Tensor": "Tensor|Scalar self, Tensor|Scalar other, Scalar alpha=1",
    "aten.sum.dim_IntList": "Tensor self, int[]? dim, bool keepdim=False, ScalarType? dtype=None",
    "aten.tanh.default": "Tensor self",
    "aten.topk.default": "Tensor self, int k, int dim=-1, bool largest=True, bool sorted=True",
    "aten.unsqueeze.default": "Tensor self, int dim",
    "aten.upsample_nearest2d.default": "Tensor self, int[] output_size, float? scales_h=None, float? scales_w=None",
    "aten.view.default": "Tensor self, int[] size",
    "aten.where.self": "Tensor condition, Tensor self, Tensor other",
}

# Ops that only finished graphs have. PyTorch has neither the cache of an engine nor adapters that rows choose.
ONLY_IN_ENGINES = {"accord.adapted_linear.default", "accord.cache_source.default", "accord.cross_attention.default"}

# Arguments that say where and how torch keeps a tensor. Values of an engine are dense and on its device, so these
# have no meaning there. padding_idx, scale_grad_by_freq and sparse concern gradients, implicit concerns vmap, and
# cudnn_enable and cudnn_enabled concern torch's own kernels.
IGNORED = {
    "device",
    "layout",
    "pin_memory",
    "memory_format",
    "non_blocking",
    "padding_idx",
    "implicit",
    "scale_grad_by_freq",
    "sparse",
    "sparse_grad",
    "cudnn_enable",
    "cudnn_enabled",
}

# Ops that are kept whole although torch could decompose them: the engine has better kernels for the whole than for
# the parts.
KEPT_WHOLE = (
    "aten.linear.default",
    "aten.layer_norm.default",
    "aten.rms_norm.default",
    "aten.group_norm.default",
    "aten.linalg_vector_norm.default",
    "aten.upsample_nearest2d.vec",
    "aten.gelu.default",
    "aten.silu.default",
    "aten.embedding.default",
    "aten.scaled_dot_product_attention.default",
)
# Composites of other ops and a check that raises. Kept whole with torch versions that drop the check (2.11).
CHECKED = (
    "aten.inverse.default",
    "aten.linalg_inv.default",
    "aten.linalg_cholesky.default",
    "aten.linalg_solve.default",
    "aten.linalg_lu_factor.default",
    "aten.linalg_ldl_factor.default",
    "aten.linalg_matrix_power.default",
    "aten.linalg_tensorinv.default",
    "aten.linalg_tensorsolve.default",
)
