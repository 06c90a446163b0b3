#pragma once
// Counts the allocations of each thread by operator new. Include it in one file of a program only: it defines the
// operators.

#include <cstddef>
#include <cstdlib>
#include <new>

#include "sanitized.hpp"

namespace {
thread_local std::size_t allocations = 0;
}

// The sanitizers bring their own operators. Not inlined: a compiler that sees free but not malloc warns about a
// mismatch.
#if !defined(ACCORD_SANITIZED)
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif
