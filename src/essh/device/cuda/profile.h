#pragma once
#include <map>
#include <string>
#include <vector>

#include "essh/device/cuda/stream.h"

struct CUevent_st;

namespace essh::cuda {

// GPU time of all launches on a stream, by name. Costs two events per launch.
class Profile {
 public:
  explicit Profile(Stream& stream) : stream_(stream) {}
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void begin(const char* name);
  void end();
  // A section of a launch that its kernel has timed itself.
  void add_part(const std::string& name, double milliseconds);

  struct Line {
    std::string name;
    int calls = 0;
    double milliseconds = 0;
  };
  // Waits for the stream. Longest first.
  std::vector<Line> lines();

 private:
  CUevent_st* mark();

  struct Launch {
    std::string name;
    CUevent_st *start, *end;
  };
  Stream& stream_;
  std::vector<Launch> launches_;
  std::map<std::string, Line> parts_;
};

// Times the launches of its scope if the stream has a profile.
class ProfileScope {
 public:
  ProfileScope(Stream& stream, const char* name) : profile_(stream.profile()) {
    if (profile_) profile_->begin(name);
  }
  ~ProfileScope() {
    if (profile_) profile_->end();
  }
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  Profile* profile_;
};

}  // namespace essh::cuda
