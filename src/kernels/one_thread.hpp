#pragma once
// Keeps oneDNN on the calling thread. Debian's oneDNN is its OpenMP build: it asks OpenMP how many threads the calling
// thread may use, both when a kernel is made and when it runs, and with one opens no parallel region at all.

// Two functions of the OpenMP standard, declared here because not every compiler that builds accord has its header.
extern "C" {
int omp_get_max_threads();
void omp_set_num_threads(int threads);
}

namespace accord::kernels {

/// While it lives, OpenMP code called from this thread runs on this thread only; afterwards the thread's own setting is
/// back. Cost: a few nanoseconds.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace accord::kernels
