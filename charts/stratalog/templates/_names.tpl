{{- define "stratalog.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "stratalog.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "stratalog.fullname" .) }}{{ else }}{{ required "serviceAccount.name: name one, or let serviceAccount.create make it" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "stratalog.selector" -}}
app.kubernetes.io/name: stratalog-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "stratalog.labels" -}}
{{ include "stratalog.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: stratalog
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "stratalog.image" -}}
{{- with .Values.image }}
{{- if and .tag .digest }}{{ fail "image: give tag or digest, not both: a digest names one image" }}{{ end -}}
{{ if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "stratalog.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "stratalog.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
