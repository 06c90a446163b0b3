#include "engine/program/activation_dtype.hpp"

namespace accord::engine {

Result<DType> activation_dtype_of_name(std::string_view name) {
  if (name == "fp8") return DType::kFloat8E4M3FN;
  return dtype_from_string(name);
}

}  // namespace accord::engine
