#pragma once
// Keeps oneDNN on the calling thread. Debian's oneDNN is the OpenMP build: it asks OpenMP how many threads the
// calling thread may use, both when it creates a kernel and when it runs one. If the answer is one, it opens no
// parallel region.

// Two functions of the OpenMP standard. They are declared here because not every compiler that builds accord has its
// header.
extern "C" {
int omp_get_max_threads();
void omp_set_num_threads(int threads);
}

namespace accord::kernels {

/// While this object is alive, OpenMP code called from this thread runs on this thread only. The destructor restores
/// the thread's own setting. Cost: a few nanoseconds.
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
