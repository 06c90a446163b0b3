#include "sim/machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace accord::sim {
namespace {

const std::string kHost =
    "[host]\nranks = 8\ncall_seconds = 1e-6\nstep_seconds = 0\nhop_seconds = 6e-8\nbytes_per_second = 5e10\n"
    "exchanged_bytes_per_second = 4e10\npacket_bytes_per_second = 8e9\n";
const std::string kNetwork =
    "[network]\nshape = \"crossbar\"\nnic_bytes_per_second = 12.5e9\nmessage_seconds = 3e-7\nlatency_seconds = 2e-6\n";

std::string error_of(const std::string& text) {
  const Result<Machine> machine = machine_from_toml(text);
  return machine.ok() ? "" : machine.status().message();
}

TEST(Machines, are_read_from_their_file) {
  const Result<Machine> machine = machine_from_toml(kHost + kNetwork);
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  EXPECT_EQ(machine->host.ranks, 8);
  EXPECT_DOUBLE_EQ(machine->host.times.seconds_per_hop, 6e-8);
  EXPECT_DOUBLE_EQ(machine->host.times.touched.seconds_per_byte(100), 2e-11);
  EXPECT_TRUE(machine->has_network);
  EXPECT_EQ(machine->network.nics, 1);
  EXPECT_DOUBLE_EQ(machine->network.nic_bytes_per_second, 12.5e9);
  EXPECT_FALSE(machine_from_toml(kHost)->has_network);
}

TEST(Machines, with_mistakes_are_refused_by_key_and_line) {
  using ::testing::HasSubstr;
  EXPECT_EQ(error_of(""), "host: is missing");
  EXPECT_EQ(error_of("[host]\nranks = 8\n"), "host.call_seconds: is missing");
  EXPECT_EQ(error_of("[host]\nranks = 0\n"), "host.ranks (line 2): expected a number from 1");
  EXPECT_EQ(error_of("[host]\nranks = 1.5\n"), "host.ranks (line 2): expected a number from 1");
  EXPECT_EQ(error_of(kHost + "call_second = 1\n"),
            "host.call_second (line 9): unknown key \"call_second\"; did you mean \"call_seconds\"?");
  EXPECT_THAT(error_of(kHost + "[net]\n"), HasSubstr("unknown table \"net\""));
  EXPECT_THAT(error_of(kHost + "[network]\nshape = \"fat tree\"\n"), HasSubstr("did you mean \"fat_tree\"?"));
  EXPECT_THAT(error_of(kHost + kNetwork + "nics = 9\n"), HasSubstr("a host has 9 NICs, but 8 ranks"));
  EXPECT_THAT(error_of(kHost + kNetwork + "torus = [2]\n"), HasSubstr("unknown key \"torus\""));
  EXPECT_THAT(error_of("[host]\nranks = \n"), HasSubstr("line 2: "));
  EXPECT_THAT(error_of("[host]\nranks = 1\ncall_seconds = -1\n"), HasSubstr("expected a number of at least 0"));
  EXPECT_THAT(error_of("[host]\nranks = 1\ncall_seconds = nan\n"), HasSubstr("expected a number of at least 0"));
}

TEST(Machines, have_rates_that_depend_on_the_size) {
  const std::string rest = kHost + "read_bytes_per_second = [[4096, 2e9], [1e6, 8e9]]\ncores = 4\n";
  const Result<Machine> machine = machine_from_toml(rest);
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  EXPECT_EQ(machine->host.times.read.points(), (std::vector<RateCurve::Point>{{4096, 2e9}, {1e6, 8e9}}));
  EXPECT_TRUE(topology_of(*machine, 8)->oversubscribed());
  EXPECT_TRUE(topology_of(*machine, 8)->readable());
  const std::string key = "host.published_bytes_per_second (line 9): expected ";
  const auto error = [](const std::string& value) { return error_of(kHost + "published_bytes_per_second = " + value); };
  EXPECT_EQ(error("[]"), key + "a rate, or a list of sizes and rates");
  EXPECT_EQ(error("[[1, 2], [3]]"), key + "a size and a rate of at least 1, such as [4096, 50e9]");
  EXPECT_EQ(error("[[1, 0]]"), key + "a size and a rate of at least 1, such as [4096, 50e9]");
  EXPECT_EQ(error("[1, 2]"), key + "a size and a rate of at least 1, such as [4096, 50e9]");
  EXPECT_EQ(error("[[4, 2], [4, 3]]"), key + "sizes that grow");
  EXPECT_EQ(error("0"), key + "a number of at least 1");
}

TEST(Machines, of_one_host_may_be_shared_by_namespaces) {
  const std::string shared = kHost + "cores = 2\n" + kNetwork + "hosts_share_cores = true\n";
  const Machine machine = *machine_from_toml(shared);
  EXPECT_EQ(machine.core_of(9), 1);
  EXPECT_EQ(machine_from_toml(kHost + "cores = 2\n" + kNetwork)->core_of(9), 3);  // the second of host 1
  EXPECT_EQ(error_of(kHost + kNetwork + "hosts_share_cores = 1\n"),
            "network.hosts_share_cores (line 14): expected true or false");
}

TEST(Machines, have_ranks_host_by_host) {
  const Machine machine = *machine_from_toml(kHost + kNetwork);
  const Result<topology::Topology> topology = topology_of(machine, 16);
  ASSERT_TRUE(topology.ok());
  EXPECT_EQ(topology->host_count(), 2);
  EXPECT_EQ(topology->host_of(7), 0);
  EXPECT_EQ(topology->host_of(8), 1);
  EXPECT_FALSE(topology->oversubscribed());
  EXPECT_EQ(topology_of(machine, 12).status().message(), "12 ranks do not fill whole hosts of 8 ranks");
  EXPECT_EQ(topology_of(*machine_from_toml(kHost), 16).status().message(),
            "16 ranks need 2 hosts, and the machine has no network");
}

}  // namespace
}  // namespace accord::sim
