#pragma once
// Bytes of a length that the caller does not know before.

#include <cstddef>
#include <string_view>

#include "accord/status.hpp"

namespace accord::c {

/// Copies `bytes` to `buffer` of `size` bytes; `needed`, if not null, gets their number. kResourceExhausted, and nothing is
/// written, if they are more; a null buffer with size 0 only asks for `needed`, which is ok.
Status write_out(std::string_view bytes, void* buffer, std::size_t size, std::size_t* needed,
                 std::string_view function);

}  // namespace accord::c
