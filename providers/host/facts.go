package host

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"converge.dev/converge/providers"
	"converge.dev/converge/providers/host/spec"
	"converge.dev/converge/providers/sysfs"
	"converge.dev/converge/schema"
)

// listFacts returns the only object of the kind host.facts. What is not shown is left out.
func listFacts(k sysfs.Kernel) ([]providers.Thing, error) {
	s := spec.FactsStatus{
		KernelRelease: release(k), KernelArguments: arguments(sysfs.Text(k.Machine, "cmdline")), Modules: modules(k), IOMMUGroups: iommuGroups(k), CPUs: cpus(k),
	}
	s.Memory, s.NodeMemory = memory(k)
	s.RebootRequired, s.RebootPackages = reboot(k)
	return []providers.Thing{{ID: "node", Name: "node", Spec: schema.Object{}, Status: s.Object(), Phase: providers.Ready}}, nil
}

func release(k sysfs.Kernel) *string {
	text := sysfs.Text(k.Machine, "sys/kernel/osrelease")
	if f := strings.Fields(sysfs.Text(k.Machine, "version")); text == "" && len(f) > 2 { // Linux version 6.1.0 (…) …
		text = f[2]
	}
	if text == "" {
		return nil
	}
	return &text
}

// arguments splits the command line of a kernel as that does: at spaces that are not in double quotes.
func arguments(line string) (all []string) {
	quoted := false
	for _, arg := range strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && unicode.IsSpace(r)
	}) {
		all = append(all, disclosed(arg))
	}
	return all
}

// hidden is shown in place of a secret.
const hidden = "(sensitive)"

// credentials matches a user and a password in an address, however many signs of an address the password has.
var credentials = regexp.MustCompile(`(//|\biscsi:)[^\s"?#]+@`)

// disclosed returns an argument without what looks like a secret. A value may have names in it again, as in NAME=OTHER=VALUE or in the query
// of an address. From the first that has a secret on, all is hidden: where one ends is not known.
func disclosed(arg string) string {
	from := 0 // of the name before the next sign
	for i, c := range arg {
		if c == '=' && i+1 < len(arg) && secretive(arg[from:i]) {
			arg = arg[:i+1] + hidden
			break
		}
		if strings.ContainsRune("=?&;,", c) {
			from = i + 1
		}
	}
	return credentials.ReplaceAllString(arg, "${1}"+hidden+"@")
}

// secretive reports whether an argument of that name may have a secret as its value. A key is one only as the last part of a word:
// there are keymaps and keyboards.
func secretive(name string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return !unicode.IsLetter(r) }), func(word string) bool {
		return slices.ContainsFunc([]string{"key", "pass", "pw", "pwd", "psk", "pin"}, func(end string) bool { return strings.HasSuffix(word, end) }) ||
			slices.ContainsFunc([]string{"passw", "passphrase", "secret", "token", "credential", "signature"}, func(part string) bool { return strings.Contains(word, part) })
	})
}

// modules returns the loaded modules. Those that are a part of the kernel have no state.
func modules(k sysfs.Kernel) (loaded []string) {
	for line := range strings.Lines(sysfs.Text(k.Machine, "modules")) {
		if f := strings.Fields(line); len(f) > 0 {
			loaded = append(loaded, f[0])
		}
	}
	if loaded == nil {
		for _, m := range k.Names("module") {
			if k.Attribute("module/"+m+"/initstate") == "live" {
				loaded = append(loaded, m)
			}
		}
	}
	slices.Sort(loaded)
	return loaded
}

func iommuGroups(k sysfs.Kernel) *int64 {
	groups, err := k.Sys.ReadDir("kernel/iommu_groups")
	if err != nil {
		return nil
	}
	n := int64(len(groups))
	return &n
}

func cpus(k sysfs.Kernel) *int64 {
	var n int64
	for part := range strings.SplitSeq(k.Attribute("devices/system/cpu/online"), ",") { // 0-3,8
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseInt(first, 10, 32)
		to, lerr := strconv.ParseInt(last, 10, 32)
		if err == nil && lerr == nil && from <= to {
			n += to - from + 1
		}
	}
	if n == 0 {
		return nil
	}
	return &n
}

// memory returns how much memory there is, and how much of it each NUMA node has.
func memory(k sysfs.Kernel) (total *int64, of map[string]int64) {
	var sum int64
	for _, n := range k.Names(nodes) {
		if number, ok := strings.CutPrefix(n, "node"); ok && number != "" && strings.Trim(number, "0123456789") == "" {
			if bytes := memTotal(k.Attribute(nodes + "/" + n + "/meminfo")); bytes > 0 {
				if of == nil {
					of = map[string]int64{}
				}
				of[n] = bytes
				sum += bytes
			}
		}
	}
	if bytes := memTotal(sysfs.Text(k.Machine, "meminfo")); bytes > 0 { // in a copy a node may be missing
		sum = bytes
	}
	if sum == 0 {
		return nil, nil
	}
	return &sum, of
}

// memTotal returns the size of the memory in bytes, from the file meminfo of the machine or of a NUMA node; 0 when it does not tell.
func memTotal(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		_, size, ok := strings.Cut(line, "MemTotal:")
		if f := strings.Fields(size); ok && len(f) > 0 {
			if kB, err := strconv.ParseInt(f[0], 10, 53); err == nil {
				return kB << 10
			}
		}
	}
	return 0
}

// reboot returns whether a package has asked for a reboot, and which ones have. Where the packages are none of Debian, none ever asks.
func reboot(k sysfs.Kernel) (required *bool, packages []string) {
	if k.Run == nil {
		return nil, nil
	}
	all, err := k.Run.ReadDir(".")
	is := slices.Contains(all, "reboot-required")
	if err != nil || !is && !k.Debian {
		return nil, nil
	}
	for line := range strings.Lines(sysfs.Text(k.Run, "reboot-required.pkgs")) {
		if p := strings.TrimSpace(line); p != "" {
			packages = append(packages, p)
		}
	}
	slices.Sort(packages)
	return &is, slices.Compact(packages)
}
