# id: 27
# kind: locale/env   form: script   limits: timeout=2s
# expectation: same bytes out (UTF-8 'strasse' with sharp s, beta) regardless of locale; no Unicode error; env given to child is explicit
# start the executor with LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0
import subprocess
r = subprocess.run(['printf', '%s', 'stra\u00dfe-\u03b2'], capture_output=True, text=True)
print(ascii(r.stdout))
