#pragma once
// Counts what this program takes by operator new. For one file of a program: it brings the operators.

#include <cstddef>
#include <cstdlib>
#include <new>

#include "sanitized.hpp"

namespace {
thread_local std::size_t allocations = 0;
}

// The sanitizers bring operators of their own. Not inlined: a compiler that sees free, but not malloc, takes them for a mismatch.
#if !defined(ACCORD_SANITIZED)
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif
