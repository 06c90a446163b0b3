#pragma once
// Returns bytes whose length the caller does not know in advance.

#include <cstddef>
#include <string_view>

#include "accord/status.hpp"

namespace accord::c {

/// Copies `bytes` to `buffer` of `size` bytes; `needed`, if not null, receives their number. If they do not fit,
/// writes nothing and fails with kResourceExhausted. A null buffer with size 0 only queries `needed`, which is ok.
Status write_out(std::string_view bytes, void* buffer, std::size_t size, std::size_t* needed,
                 std::string_view function);

}  // namespace accord::c
