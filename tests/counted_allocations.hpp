#pragma once
// Counts what this program takes by operator new. For one file of a program: it brings the operators.

#include <cstddef>
#include <cstdlib>
#include <new>

#include "sanitized.hpp"

namespace {
thread_local std::size_t allocations = 0;
}

// The sanitizers bring operators of their own.
#if !defined(ACCORD_SANITIZED)
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif
