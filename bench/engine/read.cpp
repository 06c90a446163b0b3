// The limit set by memory: a command "read BYTES N" reads that many bytes of a mapped file and adds them up, with
// THREADS threads on a core each. The answer is in milliseconds.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <string>

#include "bench/threads.hpp"
#include "bench/worker.hpp"

int main(int, char** argv) {
  using namespace accord;
  const int threads = bench::number_of("THREADS");
  const int file = open(argv[1], O_RDONLY | O_CLOEXEC);
  struct stat facts = {};
  if (file < 0 || fstat(file, &facts) != 0) {
    std::perror(argv[1]);
    return 1;
  }
  const std::size_t size = static_cast<std::size_t>(facts.st_size);
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
  if (mapped == MAP_FAILED) {
    std::perror(argv[1]);
    return 1;
  }
  return bench::serve(std::string(argv[2]) + ".0", [&](const bench::Command& command) {
    if (command.bytes > size) return std::string("error the file is smaller");
    const double microseconds = bench::time_of_work(threads, command.iterations, [&](int thread, std::size_t) {
      bench::read_share(static_cast<const std::byte*>(mapped), command.bytes, thread, threads);
    });
    return std::to_string(microseconds / 1000);
  });
}
