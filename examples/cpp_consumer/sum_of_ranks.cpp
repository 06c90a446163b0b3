// Every rank contributes its number; all ranks get the sum.
#include <iostream>
#include <vector>

#include "accord/communicator.hpp"

int main() {
  auto comm = accord::Communicator::from_environment();
  if (!comm.ok()) {
    std::cerr << comm.status().to_string() << "\n";
    return 1;
  }
  std::vector<float> numbers(1000, static_cast<float>(comm->rank()));
  const accord::Status status =
      comm->all_reduce(accord::Buffer{numbers.data(), numbers.size(), accord::DType::kFloat32}, accord::ReduceOp::kSum);
  if (!status.ok()) {
    std::cerr << status.to_string() << "\n";
    return 1;
  }
  std::cout << "rank " << comm->rank() << " of " << comm->size() << ": the sum is " << numbers[0] << "\n";
  return 0;
}
