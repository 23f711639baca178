# rondo in a container. Each of README's two commands is a stage:
#   docker build --target demo .    scripts/demo: set-up, build, a tour of training and measuring
#   docker build --target test .    scripts/test: set-up, build, every test
#   docker build --tag rondo .      a machine that can build and test rondo; .devcontainer uses it
FROM debian:12 AS machine
WORKDIR /rondo
# The set-up alone first: its layer stays valid while sources change.
COPY scripts/setup scripts/common.sh scripts/
RUN scripts/setup && rm -rf /var/lib/apt/lists/*

FROM machine AS tree
COPY . .

FROM tree AS demo
RUN scripts/demo

FROM tree AS test
RUN scripts/test

FROM machine
CMD ["bash"]
